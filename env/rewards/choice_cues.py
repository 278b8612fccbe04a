"""The words that decide, deny or explain in an answer, by what they do: a table for each language.

`choice_shape.py` replaces each word by its kind, so a new word or language is a change here alone.
"""

from __future__ import annotations

KINDS = {
    "a": "names the answer: answer, choice, verdict",
    "o": "names an option: option, statement",
    "i": "joins: is, equals",
    ":": "a colon, an arrow",
    "p": "approves: correct, best, true",
    "x": "denies: not",
    "z": "rejects: wrong, false, rule out",
    "v": "chooses: I pick, go with",
    "s": "concludes: so, therefore",
    "y": "only",
    "t": "points at what is left: it is, must be, leaves",
    "g": "identifies: which is, corresponds to",
    "e": "matches: corresponds to, agrees with",
    "h": "hedges: might, perhaps, leaning towards",
    "w": "would, were",
    "k": "supposes: if, when",
    "q": "tells what others think, or what was thought before: tempting, at first",
    "d": "turns: but, however",
    "r": "takes back: wait, no, actually",
    "u": "finds no answer: none of the, unsure",
    "c": "explains: because, since",
    "b": "announces several: the correct answers",
    "j": "joins letters: and, or",
    "f": "may stand between: the, clearly, therefore",
    "T": "ticks: a check mark",
    "m": "a number",
    "_": "another word",
    "N": "names what is not an option: part, figure",
    "L": "a letter",
    "E": "a letter in brackets, bold or in quotes",
    "l": "a small letter",
}

CUES = {
    "English": """
N part|section|figure|equation|case|table|question|exercise
_ letter of the alphabet|first letter
a answer|answers|ans|solution|response|verdict|selection|final answer|answer choice|my pick
a my choice|result|output|conclusion|short version|bottom line|tl;dr|tldr|short answer|final call
a my guess|best guess|call|best fit|odd one out|exception|best match|winner|key|final choice
a correct one
o what|opt
o option|options|choice|choices|letter|statement|statements|alternative|one|candidate|item
i is|are|was|be|been|being|remains|equals|reads|becomes|lies in|stays|says|comes out as|comes to
p preferable|better supported|more convincing|ideal|optimal|reasonable|logical|is what
p favored|favoured
p correct|right|best|true|accurate|appropriate|valid|correctly|suitable
p better|stronger|closer|superior|more closely|more accurately|most likely
p most plausible|most probable|only one|only option|only choice
p most likely answer|strongest|closest|yes
x doubt|unlikely|not clear
x not|never|isn't|aren't|wasn't|doesn't|don't|can't|cannot|won't|couldn't|wouldn't|nor|neither
x no longer|can not|didn't|hardly|shouldn't|rather than|instead of|over
z wrong|incorrect|false|eliminated|eliminate|eliminates|rule out|rules out|ruled out|invalid|too
z out|fails|contradicts|contradicted|reject|rejected|excluded|exclude|discard|discarded|untrue
z off|inaccurate|impossible|irrelevant|implausible|ruling out|eliminating|incorrectly|distractor
z fail|avoid|worse|worst|dismiss|dismissed|cross out|excluding|unsupported|misleading
v should receive|should be given|i'd recommend|i would recommend|i recommend|except
v except for|favour|favor
v choose|chose|choosing|chosen|select|selected|selecting|pick|picked|picking|go with|going with
v opt for|opting for|settle on|settling on|take|answering|vote for|lock in|locking in|stick with
v vote|put me down for|prefer|my gut says|sticking with|go for|going for|say|settled on|mark
v submit|went with|opted for|conclude
s so|therefore|thus|hence|consequently|accordingly|then|in conclusion|in summary|overall
s ultimately|by elimination|process of elimination|easy|in short|in brief|to sum up|all in all
s in the end|finally|as a result|it follows that|which means|this means|meaning|that means|i.e.
t is it|that'd be|would have to be|this implies|this proves|this gives|this shows
t which implies|which proves|which gives|favours|favors|favour|favor
t it is|it would be|it'd be|that would be|this would be|it should be|it's|its|that is|that's
t this is|must be|should be|has to be|leaves|leaving|leaves us with|leads to|leads us to
t leads me to|leaves me with|points to|gives|yields|narrows to|which leaves|gotta be|it must be
t it has to be|it can only be|this makes|that makes|making|makes|left with|comes down to
t remaining|supports|suggests|indicates|narrows it down to|favours|favors|down to|will be
t i'm confident it's|brings us to
y only|alone
e closest to|close to|nearest to
e follows|fits|works|fit|satisfies|holds|holds true|checks out|makes sense|wins|suffices|captures
e agree with|aligns with|align with|corresponds to|matches|match|agrees with|consistent with
e equivalent to|corresponding to
g exactly what|precisely what|indeed what|just what|which is|namely|listed as|labelled|labeled
g given by|under|found in|described by|described in|as in|appears as|represented by|given in
g best described by
h might|could|may|maybe|perhaps|possibly|leaning towards|leaning toward|lean towards|lean toward
h leaning|lean|inclined|guess|if i had to pick one|if i had to choose|if i had to guess|likely
h plausible|seems|looks|if i had to|if forced|tentatively|probably
w would|were
k if|suppose|supposing|assume|assuming|unless|whether|when|imagine
q turn to|consider option|look at|let me consider|let's consider|states that|claims
q one may|you may think|one could think|you could think
q tempting|tempted|initially|at first|one might|you might|some people|someone|students|people
q others say|others may|others might|others would|others think|many students|mistake|trap
q mistakenly|first thought|first instinct|first glance|thought|confuse|confused|confusion
q mistaken|user|earlier|previously|fool|fooled|error
q common mistake|common error|common trap|common misconception
d but|however|yet|whereas|though|although
r wait|no|actually|hmm|scratch that|on second thought|on second thoughts|hold on|sorry|correction
r just kidding|edit|update|oops|on reflection|upon reflection|let me reconsider|let me recheck
r apologies|strike that|i made a mistake|i misread|i was wrong|that's wrong|that is wrong
r that's not right
u none of the|none of these|cannot be determined|can't determine|cannot determine|don't know
u unsure|not sure|unable to|neither of|no correct|no option|insufficient|not enough|do not know
u none|no answer|cannot answer|can't answer|none of them
c because|since|as|for|due|due to|which|rather|instead|given|while|with|where|who|in
b answers are|correct answers|correct options|correct choices
j and|or|and/or|through|o|y|u
f us|me|you
f just|exactly
f the|a|an|most|clearly|indeed|obviously|definitely|simply|very|really|therefore|thus|hence|to
f that|my|our|final|letter|also|it|this|certainly|thing|i|i'd|we|always|here|actually|single
f indicated|below|following|intended|pretty|absolutely|surely|seemingly|still
""",
    "Chinese": """
a 答案|正确答案|最佳答案|结论|最终答案|正解
o 选项|项|说法|选择|陈述
i 是|为|应为|应是|就是|应该是
p 正确|对|符合|最佳|最合适|正确的|合适|符合题意|成立
x 不|不是|并非|没有|不能|不会|不应|不选|而非
z 错误|不正确|排除|错|不对|不符合|不符|有误|不成立|排除了|不合适
v 我认为|认为|觉得|我觉得|我认为是|认为是|觉得是
v 我选择|选|故选|应选|选择|应选择|我选|因此选|所以选|答
s 因此|所以|故|综上所述|综上|于是|从而|可见
t 只剩|剩下|只剩下|只能是
y 只有|仅|仅有
g 对应|即|也就是|符合的是
h 可能|也许|大概|或许|似乎
w 会是
k 如果|假如|假设|若
q 有人|一开始|起初|容易|误选|误认为|最初|乍一看|原本
d 但|但是|而|不过|然而
r 等等|不对|等一下|重新|更正|哦不
u 无法确定|不知道|无法判断|都不|没有正确|不确定
c 因为|由于
j 还是|和|或|与|及|或者
f 的|最|应该|应|该|题|本|选|项|我|了|即
""",
    "German": """
a antwort|lösung|ergebnis|lösungsbuchstabe
o option|aussage|antwortmöglichkeit|möglichkeit|variante|buchstabe|auswahl
i ist|lautet|sind|wäre
p richtig|korrekt|richtige|korrekte|beste|zutreffend|wahr|richtigen
e trifft zu|passt|stimmt
x nicht|kein|keine|statt|weder
z falsch|scheidet aus|scheiden aus|ausgeschlossen|unzutreffend|entfällt|entfallen|falsche
v wähle|nehme|entscheide mich für|wählen|ankreuzen
s also|daher|somit|folglich|deshalb|demnach
t es ist|bleibt|übrig|es bleibt|muss
g entspricht|nämlich
h vielleicht|könnte|vermutlich|möglicherweise
k wenn|falls|angenommen
q zunächst|zuerst|anfangs|man könnte|viele|dachte
d aber|sondern|jedoch|doch
r moment|halt|nein|doch nicht|quatsch
u keine der|weiß nicht|lässt sich nicht
c weil|da|denn
j und|oder
f die|der|das|dem|den|eindeutig|damit|sein|somit|daher|also
y nur|allein
""",
    "French": """
a réponse|solution|bonne réponse
o option|choix|affirmation|proposition|lettre
i est|sont|serait
p correcte|correct|juste|bonne|vraie|exacte|meilleure|bon|exact
x pas|n'est pas|non|ni|jamais
z fausse|faux|incorrecte|incorrect|éliminer|éliminée|à écarter|erronée|écartée|exclue
v choisis|choisir|opte pour|je prends|retiens|je choisis
s donc|ainsi|par conséquent|alors|en conclusion
t c'est|il reste|reste|ce doit être
g correspond à|qui correspond à|soit
h peut-être|pourrait|semble
k si|supposons
q d'abord|au début|on pourrait|certains
d mais|cependant|pourtant
r attendez|attends|en fait|pardon
u aucune|ne sais pas|impossible de
c parce que|puisque
j et|ou
y seule|seul|seulement
f la|le|l'|les|clairement|être|bien|donc
""",
    "Spanish, Portuguese, Italian": """
a respuesta|resposta|risposta|solución|solução|soluzione|gabarito
o opción|opção|opzione|alternativa|letra|lettera|inciso|afirmación|afirmação|scelta|enunciado
i es|é|è|sería|seria|sarebbe
p correcta|correcto|correta|correto|corretta|corretto|verdadera|verdadeira|vera|mejor|melhor
p migliore|exacta|adecuada|adequada|giusta|certa
x não|nem|ni|mai
z incorrecta|incorreta|falsa|falso|errada|errata|descartada|descartar|sbagliata|descartamos
z errónea|incorrectas|falsas|incorretas|erradas|sbagliate|descartadas|descarta|descarto|eliminada
v elijo|escolho|scelgo|elegimos|selecciono|marco|opto por|assinalo|me quedo con|fico com
v optamos por
s entonces|portanto|por lo tanto|por tanto|quindi|dunque|pertanto|logo|así que|assim|perciò|luego
t queda|sobra|resta|rimane|solo queda|debe ser|deve ser|deve essere
g corresponde a|corresponde à|corrisponde a|que corresponde a|cioè
h quizás|talvez|forse|podría|poderia|potrebbe|tal vez
k suponiendo|se fosse|si fuera
q inicialmente|al principio|a princípio|all'inizio|algunos
d pero|sino|mas|ma|però|sin embargo|porém
r espera|espere|en realidad|na verdade|in realtà|aspetta|perdón
u ninguna|nenhuma|nessuna|no sé|não sei|non so
c porque|ya que|pois|perché|poiché|já que|puesto que|dado que
j y|o|ou|ed
y solo|sólo|só|apenas|somente|única|único|unica|unico|soltanto
f el|lo|il|os|claramente|sin duda|ser|essere|más|mais|più|la|las|los
""",
    "Russian": """
a ответ|правильный ответ|решение
o вариант|утверждение|буква|пункт
i это|является
p правильный|верный|верно|правильно|верен|правильным|верным
x не|нет
z неверно|неверный|неправильно|неверны|неверен|исключаем|ложно|исключить
v выбираю|выбираем|выберу
s следовательно|значит|поэтому|итак|таким образом
t остаётся|остается
h возможно|может быть
k если|предположим
q сначала
d а|но|однако
r подождите|стоп
u не знаю|невозможно
c потому что|так как|поскольку
j и|или
y только
f под|номер
""",
    "Dutch, Swedish, Polish, Turkish": """
a antwoord|svar|svaret|odpowiedź|cevap|yanıt|şık
o optie|alternativ|opcja|seçenek
i är|er|to|jest
p juiste|goede|rätt|riktig|poprawna|prawidłowa|doğru
x niet|inte|nie|değil
z fout|onjuist|fel|błędna|yanlış
v kies|väljer|wybieram|seçiyorum
s dus|därför|więc|dolayısıyla
""",
    "Vietnamese, Indonesian": """
a đáp án|câu trả lời|jawaban|jawabannya
o lựa chọn|phương án|pilihan|opsi
i là|adalah|ialah
p đúng|chính xác|benar|tepat
x không|bukan|tidak
z sai|salah
v chọn|pilih
s vậy|do đó|jadi|maka
""",
    "Arabic, Hindi": """
a الإجابة|الجواب|उत्तर|जवाब
o الخيار|विकल्प
i هي|هو|है
p الصحيحة|الصحيح|सही
x ليس|ليست|नहीं
z خطأ|خاطئة|गलत
""",
    "Japanese, Korean": """
a 答え|解答|正解|回答|정답|답
o 選択肢|선택지|보기|번
i は|が|です|である|입니다|은|는|이|가|だ
p 正しい|適切|맞습니다|옳다|옳은|맞다|最も適切
x ない|ません|아니|아닙니다|않
z 誤り|間違い|誤っている|틀렸|틀린|틀립니다|오답|不適切
v 選びます|選ぶ|選択します|고르|선택
s したがって|よって|ゆえに|따라서|그러므로
k もし|만약
q 最初は|처음에는
d しかし|하지만|が、
r 待って|いや|잠깐
c なぜなら|왜냐하면|から
j と|または|과|와|또는
y のみ|だけ|만
f の|最も|가장
""",
}
"""Phrases of each kind; the same phrase in two places has the first kind."""

SIGNS = {
    ".": ".。…।",
    "!": "!",
    "?": "?",
    ";": ";；",
    ",": ",、，",
    ":": ":=→⇒⟶➜",
    "-": "-–—",
    "(": "(（",
    ")": ")）",
    "s": "∴",
    "T": "✓✔✅☑",
    "z": "✗✘❌✖",
    "j": "&/+",
}
"""Marks of each kind; others are left out."""
