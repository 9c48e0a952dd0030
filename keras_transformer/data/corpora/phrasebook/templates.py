"""Templates of the phrasebook, one a line: `English | German`, with the same `{slot}` names."""

TABLE = """
# == Dates, times of day, durations, and times from now. ==

# weekday and time
The meeting is on {weekday} at {time}. | Die Besprechung ist am {weekday} um {time} Uhr.
The doctor has time on {weekday} at {time}. | Der Arzt hat am {weekday} um {time} Uhr Zeit.
On {weekday} the shop closes at {time}. | Am {weekday} schließt das Geschäft um {time} Uhr.
She arrives on {weekday} at {time}. | Sie kommt am {weekday} um {time} Uhr an.
He has to work on {weekday} until {time}. | Er muss am {weekday} bis {time} Uhr arbeiten.
Are you free on {weekday} at {time}? | Hast du am {weekday} um {time} Uhr Zeit?
I know that she comes on {weekday} at {time}. | Ich weiß, dass sie am {weekday} um {time} Uhr kommt.
See you on {weekday} at {time}! | Bis {weekday} um {time} Uhr!

# time
It is {time}. | Es ist {time} Uhr.
Is it already {time}? | Ist es schon {time} Uhr?
The train leaves at {time}. | Der Zug fährt um {time} Uhr ab.
Breakfast is served until {time}. | Frühstück gibt es bis {time} Uhr.
Wake me up at {time}, please. | Bitte wecken Sie mich um {time} Uhr.
The film starts at {time}. | Der Film beginnt um {time} Uhr.
We close at {time} today. | Wir schließen heute um {time} Uhr.
Let's meet at {time}. | Treffen wir uns um {time} Uhr.
I will be back by {time}. | Ich bin bis {time} Uhr zurück.
She gets up at {time}. | Sie steht um {time} Uhr auf.
He did not come until {time}. | Er kam erst um {time} Uhr.
Since it is already {time}, we should go. | Da es schon {time} Uhr ist, sollten wir gehen.
Open from {time} to {time2}. | Geöffnet von {time} bis {time2} Uhr.

# full hours, parts of the day
On {weekday} I work from {hour} to {hour2}. | Am {weekday} arbeite ich von {hour} bis {hour2}.
It rained on {date} {daypart}. | Am {date} hat es {daypart} geregnet.

# date
The meeting is on {date}. | Die Besprechung ist am {date}.
My birthday is on {date}. | Ich habe am {date} Geburtstag.
Today is {date}. | Heute ist der {date}.
Tomorrow is {date}. | Morgen ist der {date}.
The holidays start on {date}. | Die Ferien beginnen am {date}.
The exam takes place on {date}. | Die Prüfung findet am {date} statt.
The offer is valid until {date}. | Das Angebot gilt bis zum {date}.
We are getting married on {date}. | Wir heiraten am {date}.
The exhibition opens on {date}. | Die Ausstellung wird am {date} eröffnet.
Please reply by {date}. | Bitte antworten Sie bis zum {date}.
My visa expires on {date}. | Mein Visum läuft am {date} ab.
The rent is due on {date}. | Die Miete ist am {date} fällig.
The museum is closed on {date}. | Das Museum ist am {date} geschlossen.
The package arrived on {date}. | Das Paket ist am {date} angekommen.
We are flying back on {date}. | Wir fliegen am {date} zurück.
Is {date} a public holiday? | Ist der {date} ein Feiertag?
I am on vacation from {date} to {date2}. | Ich bin vom {date} bis zum {date2} im Urlaub.
Today is {weekday}, {date}. | Heute ist {weekday}, der {date}.
The concert is on {weekday}, {date}. | Das Konzert ist am {weekday}, dem {date}.
Departure: {weekday}, {date} | Abfahrt: {weekday}, {date}

# full date
She was born on {full_date}. | Sie wurde am {full_date} geboren.
The election was on {full_date}. | Die Wahl war am {full_date}.
The contract ends on {full_date}. | Der Vertrag endet am {full_date}.
Your letter of {full_date} | Ihr Brief vom {full_date}
Date of birth: {full_date} | Geburtsdatum: {full_date}
The law applies from {full_date}. | Das Gesetz gilt ab dem {full_date}.
Last changed on {full_date} | Zuletzt geändert am {full_date}
The bridge was opened on {full_date}. | Die Brücke wurde am {full_date} eröffnet.
The photo is from {full_date}. | Das Foto ist vom {full_date}.

# month, year, quarter
Founded in {month} {year} | Gegründet im {month} {year}
In {month} {year} we moved. | Im {month} {year} sind wir umgezogen.
We have known each other since {month} {year}. | Wir kennen uns seit {month} {year}.
The hotel is closed from {month} to {month2}. | Das Hotel ist von {month} bis {month2} geschlossen.
The house was built in {year}. | Das Haus wurde {year} gebaut.
I was born in {year}. | Ich bin {year} geboren.
Where did you live in {year}? | Wo hast du {year} gewohnt?
The book was published in {year}. | Das Buch ist {year} erschienen.
They have lived here since {year}. | Sie wohnen seit {year} hier.
The school was closed in {year}. | Die Schule wurde {year} geschlossen.
In the {quarter} of {year} profits rose. | Im {quarter} {year} ist der Gewinn gestiegen.

# lists of weekdays and months
I work on {weekdays} until {hour}. | Ich arbeite am {weekdays} bis {hour}.
It rains a lot in {months}. | Im {months} regnet es viel.

# minutes and hours
The trip takes {hours}. | Die Fahrt dauert {hours}.
Please wait {hours}. | Bitte warten Sie {hours}.
I slept for {hours}. | Ich habe {hours} geschlafen.
Bake the bread for {hours}. | Das Brot {hours} backen.
We waited {hours} for the bus. | Wir haben {hours} auf den Bus gewartet.
The train is {hours} late. | Der Zug hat {hours} Verspätung.
You still have {hours}. | Sie haben noch {hours} Zeit.
She spoke for {hours} without a break. | Sie sprach {hours} ohne Pause.
The battery lasts {hours}. | Der Akku hält {hours}.
He trains {hours} a day. | Er trainiert {hours} am Tag.
It only takes {hours} on foot. | Zu Fuß dauert es nur {hours}.
How long does it take? About {hours}. | Wie lange dauert es? Etwa {hours}.
The film lasts {hours_and_minutes}. | Der Film dauert {hours_and_minutes}.
The flight takes {hours_and_minutes}. | Der Flug dauert {hours_and_minutes}.
I have been waiting for {hours_dative}. | Ich warte seit {hours_dative}.
It has been raining for {hours_dative}. | Es regnet seit {hours_dative}.
The shop has been open for {hours_dative}. | Das Geschäft ist seit {hours_dative} geöffnet.
She has been on the phone for {hours_dative}. | Sie telefoniert seit {hours_dative}.
The pain stopped after {hours_dative}. | Die Schmerzen haben nach {hours_dative} aufgehört.

# minutes and hours from now
The train left {hours_ago}. | Der Zug ist {hours_ago} abgefahren.
She called {hours_ago}. | Sie hat {hours_ago} angerufen.
I ate {hours_ago}. | Ich habe {hours_ago} gegessen.
The plane landed {hours_ago}. | Das Flugzeug ist {hours_ago} gelandet.
He woke up {hours_ago}. | Er ist {hours_ago} aufgewacht.
It stopped raining {hours_ago}. | Es hat {hours_ago} aufgehört zu regnen.
The message was sent {hours_ago}. | Die Nachricht wurde {hours_ago} gesendet.
The bus leaves {in_hours}. | Der Bus fährt {in_hours} ab.
I will call you back {in_hours}. | Ich rufe Sie {in_hours} zurück.
The meeting begins {in_hours}. | Die Besprechung beginnt {in_hours}.
The shop closes {in_hours}. | Das Geschäft schließt {in_hours}.
We are landing {in_hours}. | Wir landen {in_hours}.
Remind me {in_hours}. | Erinnere mich {in_hours}.
Can you come back {in_hours}? | Können Sie {in_hours} wiederkommen?
{in_hours} dinner will be ready. | {in_hours} ist das Abendessen fertig.

# days, weeks, months and years
The course lasts {years}. | Der Kurs dauert {years}.
She is staying {years}. | Sie bleibt {years}.
I worked there for {years}. | Ich habe dort {years} gearbeitet.
The contract runs for {years}. | Der Vertrag läuft {years}.
The warranty is valid for {years}. | Die Garantie gilt {years}.
It took {years} to build the house. | Es dauerte {years}, das Haus zu bauen.
He did not smoke for {years}. | Er hat {years} nicht geraucht.
The renovation will take another {years}. | Die Renovierung dauert noch {years}.
I have lived here for {years_dative}. | Ich wohne seit {years_dative} hier.
They have been married for {years_dative}. | Sie sind seit {years_dative} verheiratet.
The heating has been broken for {years_dative}. | Die Heizung ist seit {years_dative} kaputt.
We have known each other for {years_dative}. | Wir kennen uns seit {years_dative}.
I have not seen her for {years_dative}. | Ich habe sie seit {years_dative} nicht gesehen.
Payment is due within {years_dative}. | Die Zahlung ist innerhalb von {years_dative} fällig.
After {years_dative} he gave up. | Nach {years_dative} gab er auf.
She came back after {years_dative}. | Sie kam nach {years_dative} zurück.

# days, weeks, months and years from now
We moved here {years_ago}. | Wir sind {years_ago} hierhergezogen.
They got married {years_ago}. | Sie haben {years_ago} geheiratet.
I bought the car {years_ago}. | Ich habe das Auto {years_ago} gekauft.
She stopped smoking {years_ago}. | Sie hat {years_ago} aufgehört zu rauchen.
Where were you {years_ago}? | Wo warst du {years_ago}?
{years_ago} everything was different. | {years_ago} war alles anders.
The warranty expired {years_ago}. | Die Garantie ist {years_ago} abgelaufen.
We are moving {in_years}. | Wir ziehen {in_years} um.
The passport expires {in_years}. | Der Reisepass läuft {in_years} ab.
The exam is {in_years}. | Die Prüfung ist {in_years}.
I will retire {in_years}. | Ich gehe {in_years} in Rente.
The book will be published {in_years}. | Das Buch erscheint {in_years}.
{in_years} we will know more. | {in_years} wissen wir mehr.
Where will you be {in_years}? | Wo wirst du {in_years} sein?
Your subscription ends {in_years}. | Ihr Abonnement endet {in_years}.

# == Countries, languages, cities, currencies, and scripts. ==

# country
Have you ever been to {country}? | Warst du schon einmal in {country}?
I come from {country}. | Ich komme aus {country}.
She lives in {country}. | Sie wohnt in {country}.
We are traveling to {country}. | Wir reisen nach {country}.
How do I get a visa for {country}? | Wie bekomme ich ein Visum für {country}?
He studied in {country}. | Er hat in {country} studiert.
My parents come from {country}. | Meine Eltern kommen aus {country}.
What is the capital of {country}? | Wie heißt die Hauptstadt von {country}?
Is {country} far away? | Ist {country} weit weg?
I would like to go to {country} again. | Ich möchte wieder nach {country} fahren.
The tea comes from {country}. | Der Tee kommt aus {country}.
A letter from {country} has arrived. | Ein Brief aus {country} ist angekommen.
How many people live in {country}? | Wie viele Menschen leben in {country}?
He is writing a book about {country}. | Er schreibt ein Buch über {country}.
{country} has a new government. | {country} hat eine neue Regierung.
Where is {country} on the map? | Wo liegt {country} auf der Karte?
Which language is spoken in {country}? | Welche Sprache spricht man in {country}?
I know that you come from {country}. | Ich weiß, dass du aus {country} kommst.
Does the phone work in {country}? | Funktioniert das Telefon in {country}?
The team from {country} won. | Die Mannschaft aus {country} hat gewonnen.

# country and something else
{country} won against {country2}. | {country} hat gegen {country2} gewonnen.
We flew from {country} to {country2}. | Wir sind von {country} nach {country2} geflogen.
She moved from {country} to {country2}. | Sie ist von {country} nach {country2} gezogen.
Is {country} bigger than {country2}? | Ist {country} größer als {country2}?
I want to see {countries}. | Ich möchte {countries} sehen.
We deliver to {countries}. | Wir liefern nach {countries}.
Guests from {countries} are coming. | Es kommen Gäste aus {countries}.
He wants to move to {countries_or}. | Er will nach {countries_or} ziehen.
Is she from {countries_or}? | Kommt sie aus {countries_or}?
We are flying to {country} in {month}. | Wir fliegen im {month} nach {country}.
We are staying in {country} for {years}. | Wir bleiben {years} in {country}.
He came back from {country} {years_ago}. | Er ist {years_ago} aus {country} zurückgekommen.
Is it hot in {country} in {month}? | Ist es im {month} in {country} heiß?
The visa for {country} is valid for {years}. | Das Visum für {country} gilt {years}.

# language
I speak {languages}. | Ich spreche {languages}.
Do you speak {languages_or}? | Sprechen Sie {languages_or}?
How do you say that in {languages_or}? | Wie sagt man das auf {languages_or}?
Please answer in {languages_or}. | Bitte antworten Sie auf {languages_or}.
The guide speaks {languages}. | Der Reiseführer spricht {languages}.
We need someone who speaks {languages}. | Wir brauchen jemanden, der {languages} spricht.
She says that she speaks {languages}. | Sie sagt, dass sie {languages} spricht.
Would you rather learn {languages_or}? | Möchtest du lieber {languages_or} lernen?
Is {language} harder than {language2}? | Ist {language} schwerer als {language2}?
I understand {language} better than {language2}. | Ich verstehe {language} besser als {language2}.
She speaks {language}, he speaks {language2}. | Sie spricht {language}, er spricht {language2}.
The text is in {language}, not in {language2}. | Der Text ist auf {language}, nicht auf {language2}.
He speaks {language} but no {language2}. | Er spricht {language}, aber kein {language2}.

# language and something else
In {city} I spoke {language}. | In {city} habe ich {language} gesprochen.
She taught {language} in {country}. | Sie hat in {country} {language} unterrichtet.
In {city} I learn {language} {daypart}. | In {city} lerne ich {daypart} {language}.
The exam in {language} is on {weekday}. | Die Prüfung in {language} ist am {weekday}.
He has been learning {language} for {years_dative}. | Er lernt seit {years_dative} {language}.
Where can I learn {language} in {city}? | Wo kann ich in {city} {language} lernen?
I live in {country} but speak no {language}. | Ich wohne in {country}, spreche aber kein {language}.
Do many people in {country} speak {language}? | Sprechen in {country} viele Menschen {language}?
He spoke {language} for {hours}. | Er hat {hours} {language} gesprochen.
Language: {language}, script: {script} | Sprache: {language}, Schrift: {script}
The book was published in {language} in {year}. | Das Buch ist {year} auf {language} erschienen.

# city
A ticket from {city} to {city2}, please. | Eine Fahrkarte von {city} nach {city2}, bitte.
How far is it from {city} to {city2}? | Wie weit ist es von {city} nach {city2}?
We drove from {city} to {city2}. | Wir sind von {city} nach {city2} gefahren.
Is there a direct flight from {city} to {city2}? | Gibt es einen Direktflug von {city} nach {city2}?
I like {city} better than {city2}. | {city} gefällt mir besser als {city2}.
She lives in {city} and works in {city2}. | Sie wohnt in {city} und arbeitet in {city2}.
Does this train go to {city} or to {city2}? | Fährt dieser Zug nach {city} oder nach {city2}?
He was born in {city} but lives in {city2}. | Er ist in {city} geboren, wohnt aber in {city2}.
We are visiting {cities}. | Wir besuchen {cities}.
We have hotels in {cities}. | Wir haben Hotels in {cities}.
I would like to study in {cities_or}. | Ich möchte in {cities_or} studieren.
Is the meeting in {cities_or}? | Ist die Besprechung in {cities_or}?

# city and time
The flight to {city} departs at {time}. | Der Flug nach {city} startet um {time} Uhr.
It is {time} in {city}. | In {city} ist es {time} Uhr.
We change trains in {city} at {time}. | Wir steigen um {time} Uhr in {city} um.
The train from {city} is {hours} late. | Der Zug aus {city} hat {hours} Verspätung.
It takes {hours} to get to {city}. | Bis {city} dauert es {hours}.
On {weekday} I have to go to {city}. | Am {weekday} muss ich nach {city} fahren.
Are you coming to {city} on {weekday}? | Kommst du am {weekday} nach {city}?
The conference in {city} begins on {date}. | Die Konferenz in {city} beginnt am {date}.
I will be in {city} until {date}. | Ich bin bis zum {date} in {city}.
It often rains in {city} in {month}. | In {city} regnet es im {month} oft.
Do you live in {city} in {month} too? | Wohnst du im {month} auch in {city}?
I was born in {city} in {year}. | Ich bin {year} in {city} geboren.
In {year} he moved to {city}. | Im Jahr {year} zog er nach {city}.
They lived in {city} for {years}. | Sie wohnten {years} in {city}.
She has worked in {city} for {years_dative}. | Sie arbeitet seit {years_dative} in {city}.
I was in {city} {years_ago}. | Ich war {years_ago} in {city}.
She is flying to {city} {in_years}. | Sie fliegt {in_years} nach {city}.

# city and something else
Is {city} the capital of {country}? | Ist {city} die Hauptstadt von {country}?
She flew from {city} to {country}. | Sie ist von {city} nach {country} geflogen.
Is the embassy of {country} in {city}? | Ist die Botschaft von {country} in {city}?
It is still {distance} to {city}. | Es sind noch {distance} bis {city}.

# currency
Currency: {currency}, amount: {thousands} | Währung: {currency}, Betrag: {thousands}
{currency}: exchange rate {decimal} | {currency}: Wechselkurs {decimal}
{currency}: up {percent} | {currency}: {percent} im Plus

# == Money, numbers, percentages, weights, and other measures. ==

# prices with cents
That costs {price}. | Das kostet {price}.
The ticket costs {price}. | Die Eintrittskarte kostet {price}.
A coffee costs {price} here. | Ein Kaffee kostet hier {price}.
The bill comes to {price}. | Die Rechnung beträgt {price}.
Shipping costs {price}. | Der Versand kostet {price}.
You save {price}. | Sie sparen {price}.
Total: {price} | Summe: {price}
The apples cost {price} a kilo. | Die Äpfel kosten {price} das Kilo.
A ticket to {city} costs {price}. | Eine Fahrkarte nach {city} kostet {price}.
I thought that it costs {price}. | Ich dachte, dass es {price} kostet.

# amounts without cents
She earns {amount} a month. | Sie verdient {amount} im Monat.
The rent is {amount} a month. | Die Miete beträgt {amount} im Monat.
The repair cost {amount}. | Die Reparatur hat {amount} gekostet.
We have saved {amount}. | Wir haben {amount} gespart.
The room costs {amount} per night. | Das Zimmer kostet {amount} pro Nacht.
A hotel room in {city} costs {amount}. | Ein Hotelzimmer in {city} kostet {amount}.
Price: {amount} plus {percent} tax | Preis: {amount} zuzüglich {percent} Steuer
The thief stole {amount}. | Der Dieb hat {amount} gestohlen.

# money in words
Can you lend me {money}? | Kannst du mir {money} leihen?
He owes me {money}. | Er schuldet mir {money}.
I would like to exchange {money}. | Ich möchte {money} wechseln.
The fine is {money}. | Die Geldstrafe beträgt {money}.
I only have {money} left. | Ich habe nur noch {money}.
I bet {money} that it will rain. | Ich wette um {money}, dass es regnet.
He gave the waiter {money}. | Er gab dem Kellner {money}.
If you give me {money}, I will help you. | Wenn du mir {money} gibst, helfe ich dir.

# percentages
Prices rose by {percent}. | Die Preise sind um {percent} gestiegen.
Sales fell by {percent}. | Der Umsatz ist um {percent} gesunken.
The battery is at {percent}. | Der Akku ist bei {percent}.
You get a discount of {percent}. | Sie bekommen {percent} Rabatt.
{percent} of the students passed. | {percent} der Schüler haben bestanden.
{percent} voted for it. | {percent} haben dafür gestimmt.
Unemployment fell to {percent}. | Die Arbeitslosigkeit ist auf {percent} gesunken.
The download is {percent} complete. | Der Download ist zu {percent} abgeschlossen.
The interest rate is {percent}. | Der Zinssatz beträgt {percent}.
The tank is {percent} full. | Der Tank ist zu {percent} voll.
We grew by {percent} in the {quarter}. | Wir sind im {quarter} um {percent} gewachsen.

# whole numbers
Take bus {number}. | Nehmen Sie den Bus {number}.
Room {number} is free. | Zimmer {number} ist frei.
I need {number} chairs. | Ich brauche {number} Stühle.
There were {number} guests. | Es waren {number} Gäste da.
She is {number} years old. | Sie ist {number} Jahre alt.
Open the book to page {number}. | Schlagen Sie das Buch auf Seite {number} auf.
The class has {number} students. | Die Klasse hat {number} Schüler.
He has written {number} books. | Er hat {number} Bücher geschrieben.
My seat has the number {number}. | Mein Sitzplatz hat die Nummer {number}.
The house has {number} windows. | Das Haus hat {number} Fenster.
{number} of {number2} answers were correct. | {number} von {number2} Antworten waren richtig.
Table {number} is reserved for {hour}. | Tisch {number} ist für {hour} reserviert.
When I was {number}, we lived in {country}. | Als ich {number} war, wohnten wir in {country}.

# thousands and decimals
The town has {thousands} inhabitants. | Die Stadt hat {thousands} Einwohner.
{thousands} people came to the concert. | {thousands} Menschen kamen zum Konzert.
The factory builds {thousands} cars a year. | Die Fabrik baut {thousands} Autos im Jahr.
The article has {thousands} words. | Der Artikel hat {thousands} Wörter.
The library has {thousands} books. | Die Bibliothek hat {thousands} Bücher.
The average is {decimal}. | Der Durchschnitt ist {decimal}.
The value rose from {decimal} to {decimal2}. | Der Wert ist von {decimal} auf {decimal2} gestiegen.
Multiply the number by {decimal}. | Multiplizieren Sie die Zahl mit {decimal}.
The result is {decimal}. | Das Ergebnis ist {decimal}.
{decimal} million people live there. | Dort leben {decimal} Millionen Menschen.
The project cost {decimal} million euros. | Das Projekt hat {decimal} Millionen Euro gekostet.

# weight
I would like {mass} of potatoes. | Ich möchte {mass} Kartoffeln.
The package weighs {mass}. | Das Paket wiegt {mass}.
We need {mass} of flour. | Wir brauchen {mass} Mehl.
My suitcase weighs {mass}. | Mein Koffer wiegt {mass}.
He bought {mass} of rice. | Er hat {mass} Reis gekauft.
She has lost {mass}. | Sie hat {mass} abgenommen.
Add {mass} of sugar. | {mass} Zucker hinzufügen.
{mass} of cheese, please. | {mass} Käse, bitte.
{mass} of apples cost {price}. | {mass} Äpfel kosten {price}.
Is your luggage heavier than {mass}? | Ist Ihr Gepäck schwerer als {mass}?

# distance, height and length
The hotel is {distance} from the station. | Das Hotel ist {distance} vom Bahnhof entfernt.
I ran {distance} today. | Ich bin heute {distance} gelaufen.
The river is {distance} long. | Der Fluss ist {distance} lang.
We walked {distance}. | Wir sind {distance} zu Fuß gegangen.
The beach is only {distance} away. | Der Strand ist nur {distance} entfernt.
The traffic jam is {distance} long. | Der Stau ist {distance} lang.
The mountain is {altitude} high. | Der Berg ist {altitude} hoch.
The village is {altitude} above sea level. | Das Dorf liegt {altitude} über dem Meer.
The table is {length} wide. | Der Tisch ist {length} breit.
The wall is {length} high. | Die Mauer ist {length} hoch.
The rope is {length} long. | Das Seil ist {length} lang.
The snow is {length} deep. | Der Schnee liegt {length} hoch.
The water has risen by {length}. | Das Wasser ist um {length} gestiegen.
The board is {length} too short. | Das Brett ist {length} zu kurz.
I need {length} of fabric. | Ich brauche {length} Stoff.
The shelf is {length} wide and {length2} high. | Das Regal ist {length} breit und {length2} hoch.
Please keep {length} away. | Bitte halten Sie {length} Abstand.

# volume and cooking
Add {volume} of water. | {volume} Wasser hinzufügen.
He drank {volume} of milk. | Er hat {volume} Milch getrunken.
The bottle holds {volume}. | Die Flasche fasst {volume}.
We need {volume} of paint. | Wir brauchen {volume} Farbe.
You should drink {volume} of water. | Sie sollten {volume} Wasser trinken.
{volume} of juice are enough. | {volume} Saft reichen.
You need {mass} of flour and {spoons} of sugar. | Man braucht {mass} Mehl und {spoons} Zucker.
Bake at {oven} for {hours}. | Bei {oven} {hours} backen.

# area and speed
The apartment is {area} in size. | Die Wohnung ist {area} groß.
The garden is {area} in size. | Der Garten ist {area} groß.
We are looking for {area} of office space. | Wir suchen {area} Bürofläche.
The forest is {land} in size. | Der Wald ist {land} groß.
The farm is {land} in size. | Der Bauernhof ist {land} groß.
{land} of forest burned down. | {land} Wald sind abgebrannt.
You may drive {speed} here. | Hier dürfen Sie {speed} fahren.
The wind reaches {speed}. | Der Wind erreicht {speed}.
The maximum speed is {speed}. | Die Höchstgeschwindigkeit beträgt {speed}.

# temperature
It is {temperature} today. | Es sind heute {temperature}.
The water has a temperature of {temperature}. | Das Wasser ist {temperature} warm.
Yesterday it was {temperature} in {city}. | Gestern waren es in {city} {temperature}.
Tomorrow it will be {degrees}. | Morgen werden es {degrees}.
At night it cools down to {degrees}. | Nachts kühlt es auf {degrees} ab.
Store below {degrees} | Unter {degrees} lagern
Although it is {month}, it is {degrees}. | Obwohl es {month} ist, sind es {degrees}.
In {city} it is {degrees} {daypart}. | In {city} sind es {daypart} {degrees}.
The temperature rose to {degrees}. | Die Temperatur ist auf {degrees} gestiegen.

# data, energy and power
The file is {data} in size. | Die Datei ist {data} groß.
The phone has {data} of memory. | Das Handy hat {data} Speicher.
You have already used {data}. | Sie haben schon {data} verbraucht.
{data} are still free. | Es sind noch {data} frei.
A portion has {calories}. | Eine Portion hat {calories}.
He burned {calories}. | Er hat {calories} verbrannt.
We use {energy} a day. | Wir verbrauchen {energy} am Tag.
In {month} we used {energy}. | Im {month} haben wir {energy} verbraucht.
The lamp uses {watts}. | Die Lampe verbraucht {watts}.
The engine has {horsepower}. | Der Motor hat {horsepower}.
"""
