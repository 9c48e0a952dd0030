"""Templates about dates, times of day, durations and times from now."""

TABLE = """
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
"""
