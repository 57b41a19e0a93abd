S She go to school by bus every day .
A 1 2|||error||||||REQUIRED|||-NONE-|||0

S The childs were playing in a park near our house .
A 1 2|||error||||||REQUIRED|||-NONE-|||0
A 5 6|||error||||||REQUIRED|||-NONE-|||0

S I am interested on learning how to cook .
A 3 4|||error||||||REQUIRED|||-NONE-|||0

S He have lived in this town since ten years .
A 1 2|||error||||||REQUIRED|||-NONE-|||0
A 6 7|||error||||||REQUIRED|||-NONE-|||0

S Yesterday we see a very long film .
A 2 3|||error||||||REQUIRED|||-NONE-|||0

S There is many reasons why people move to the city .
A 1 2|||error||||||REQUIRED|||-NONE-|||0

S The news were not as bad as we thought .
A 2 3|||error||||||REQUIRED|||-NONE-|||0

S My father teached me how to swim when I was young .
A 2 3|||error||||||REQUIRED|||-NONE-|||0

S They are looking forward to meet you next week .
A 5 6|||error||||||REQUIRED|||-NONE-|||0

S This is the most difficult of the two questions .
A 3 4|||error||||||REQUIRED|||-NONE-|||0

S I would like to made a cake for her birthday .
A 4 5|||error||||||REQUIRED|||-NONE-|||0

S She speaks English very good , but her writing is weak .
A 4 5|||error||||||REQUIRED|||-NONE-|||0

S Each of the students need a pen and some papers .
A 4 5|||error||||||REQUIRED|||-NONE-|||0
A 9 10|||error||||||REQUIRED|||-NONE-|||0

S He asked me where was the station .
A 4 5|||error||||||REQUIRED|||-NONE-|||0
A 7 8|||error||||||REQUIRED|||-NONE-|||0

S We arrived to the airport two hours late .
A 2 3|||error||||||REQUIRED|||-NONE-|||0

S The weather was to cold to eat outside .
A 3 4|||error||||||REQUIRED|||-NONE-|||0

S Their are only two seats left in the first row .
A 0 1|||error||||||REQUIRED|||-NONE-|||0

S If I was knowing the answer , I would tell you .
A 2 3|||error||||||REQUIRED|||-NONE-|||0
A 3 4|||error||||||REQUIRED|||-NONE-|||0

S The man which sold us the car has disappeared .
A 2 3|||error||||||REQUIRED|||-NONE-|||0

S I have ate too much bread this morning .
A 2 3|||error||||||REQUIRED|||-NONE-|||0

S It depend on how much money you want to spend .
A 1 2|||error||||||REQUIRED|||-NONE-|||0

S Her hair are longer than my .
A 2 3|||error||||||REQUIRED|||-NONE-|||0
A 5 6|||error||||||REQUIRED|||-NONE-|||0

S You must to stop at the red light .
A 2 3|||error||||||REQUIRED|||-NONE-|||0

S He said that he will come if he had time .
A 4 5|||error||||||REQUIRED|||-NONE-|||0

S One of my friend works in a bank .
A 3 4|||error||||||REQUIRED|||-NONE-|||0

S The book was wrote by a famous writer .
A 3 4|||error||||||REQUIRED|||-NONE-|||0

S I do not have no time to read it .
A 4 5|||error||||||REQUIRED|||-NONE-|||0

S She is afraid from dogs and large birds .
A 3 4|||error||||||REQUIRED|||-NONE-|||0

S Last summer we have been to Italy by train .
A 3 4|||error||||||REQUIRED|||-NONE-|||0
A 4 5|||error||||||REQUIRED|||-NONE-|||0

S Please explain me the rules of this game again .
A 2 3|||error||||||REQUIRED|||-NONE-|||0

S The police has found the stealed bicycle .
A 2 3|||error||||||REQUIRED|||-NONE-|||0
A 5 6|||error||||||REQUIRED|||-NONE-|||0

S He is good in mathematics and also plays the piano .
A 3 4|||error||||||REQUIRED|||-NONE-|||0

S I look for the picture and remember that day .
A 2 3|||error||||||REQUIRED|||-NONE-|||0

S There was less people at the concert than last time .
A 2 3|||error||||||REQUIRED|||-NONE-|||0

S The informations on this page are wrong .
A 1 2|||error||||||REQUIRED|||-NONE-|||0
A 5 6|||error||||||REQUIRED|||-NONE-|||0

S Every morning he drink a cup of tea .
A 3 4|||error||||||REQUIRED|||-NONE-|||0

S We discussed about the plan for more than an hour .
A 2 3|||error||||||REQUIRED|||-NONE-|||0

S She suggested to go home before it gets dark .
A 2 3|||error||||||REQUIRED|||-NONE-|||0
A 3 4|||error||||||REQUIRED|||-NONE-|||0

S The room is enough big for six people .
A 3 4|||error||||||REQUIRED|||-NONE-|||0
A 4 5|||error||||||REQUIRED|||-NONE-|||0

S My sister is two years older then me .
A 6 7|||error||||||REQUIRED|||-NONE-|||0

