"""Templates about money, numbers, percentages, weights and other measures."""

TABLE = """
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
