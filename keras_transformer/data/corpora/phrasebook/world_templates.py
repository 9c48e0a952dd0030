"""Templates about countries, languages, cities, currencies and scripts."""

TABLE = """
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
"""
