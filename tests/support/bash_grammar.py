"""Small scripts by hypothesis, in the forms that training scripts have.

`u` is a program whose exit code nobody knows, $OUT comes from outside, and nobody gives $OPT.
"""

from __future__ import annotations

from hypothesis import strategies as st

GRAMMAR = r"""
:STATEMENT
OWN=QUOTED
OWN=BARE
OWN+=BARE
export OWN=QUOTED
L=(WORD WORD)
L+=(WORD)
a WORD WORD
B=2 a WORD
: ${OWN:=w}
unset A
((B++))
let C=B+1
set -- u v 'w x'
shift
f one 'two three'
L[1]=n
L=([a BARE] x[1] [y-NUMBER]z)
declare -A M=([k-1]=BARE [k.2]=n); OWN=${M[k-1]}/${M[k.2]}
declare -A M; M[x:1]=PLAIN; M[x.1]=QUOTED; OWN=${M[x:1]}${M["x.1"]}
read -r A B <<< 'r s t'
IFS=, read -ra L <<< 'g,h,i'
printf -v C '%s-%s' 1 2
A=1 B=$A
C=`echo $B`
read -r -d '' C <<EOF¶ one $A\¶ two¶EOF
( A=sub; a $A )
a $A | a $B
A=(m n)
eval 'A=9'
eval a "$A"
break
f() { local A=$1; B=$2; a in $A $B "$@"; return 1; }
false
local A=5
set -e
set -u
:NESTED
if CONDITION; then¶STATEMENT¶fi
if CONDITION; then¶STATEMENT¶else¶STATEMENT¶fi
if CONDITION; then¶STATEMENT¶elif CONDITION; then¶STATEMENT¶else¶STATEMENT¶fi
CONDITION && { STATEMENT¶}
CONDITION || { STATEMENT¶}
for A in WORD WORD; do¶STATEMENT¶STATEMENT¶done
for ((INDEX=0; INDEX<3; INDEX++)); do¶STATEMENT¶done
case BARE in PATTERN) STATEMENT¶;; *) STATEMENT¶;; esac
{ STATEMENT¶STATEMENT¶}
INDEX=; while [ ${#INDEX} -lt 3 ]; do INDEX+=z¶STATEMENT¶done
for A in 1 2; do¶u && break¶STATEMENT¶done
:CONDITION
[ QUOTED = QUOTED ]
[ QUOTED != QUOTED ]
[ -z QUOTED ]
[ -n QUOTED ]
[ NUMBER -lt 3 ]
u
! u
[[ $NAME == PATTERN ]]
[[ $NAME != PATTERN ]]
[[ -z $NAME || $B -gt 1 ]]
[[ $A =~ ^a ]]
[[ $A =~ [0-9]+ ]]
true
((NUMBER SIGN NUMBER))
[ $A ]
[ -n "$A" -a $B = 1 ]
f
[ ! -z "$A" ]
u && [ -n "$A" ]
A=7
[ -z "$OPT" ]
[ -n "${OPT:-}" ]
[ "$OUT" = 1 ]
:WORD
k.v=QUOTED
QUOTED
BARE
p.q=BARE
BAREQUOTED
plain
a\ b
{x,y}z
n{1..3}
{1,2}{a,b}
--f
[a,b]
k=~/x
~/m
{a}
x{,y}
:QUOTED
"BARE"
"PLAINBARE"
"BARE BARE"
'PLAIN'
"${L[@]}"
"$@"
"${L[*]}"
$'t\tn'
"\$A \" \\ \n"
"${L[@]:1}"
""
:BARE
$NAME
${NAME}
${#OWN}
${OWN:-DEFAULT}
${OPT-DEFAULT}
${OWN:+DEFAULT}
${OPT+DEFAULT}
${OWN%PATTERN}
${OWN%%PATTERN}
${OWN#PATTERN}
${L##PATTERN}
${OWN/PATTERN/z}
${OWN//PATTERN/}
${OWN,,}
${OWN^^}
${OWN:1}
${OWN: -2}
$((NUMBER SIGN NUMBER))
$(echo $A)
$(echo "$A")
$(basename a/b.c)
$(basename $A)
$(dirname /x/y)
$#
$1
${L[@]}
${L[1]}
${#L[@]}
$(echo $A | tr a-z A-Z)
$(echo a-b | cut -d- -f2)
:PLAIN

1
3
08
x
a/b.c
Qwen/Qwen3-8B
grpo
x y
p  q
--k=v
a,b
/d/e.t
:PATTERN
*
?
a*
*/
/*
*.c
[ab]
[!a-w]*
x
*b*
grpo
'*'
:DEFAULT

d
d e
$A
'q r'
"s  t"
${B}
:NUMBER
0
1
2
7
-3
A
$B
${C:-4}
OUT
:SIGN
+
-
*
/
%
**
<
==
&&
||
<<
&
:NAME
A
B
C
L
OUT
HOME
:OWN
A
B
C
"""
RULES = {
    name: [one.replace("¶", "\n") for one in rest.split("\n")]
    for name, _, rest in (part.partition("\n") for part in GRAMMAR.strip().split("\n:"))
}
RULES["STATEMENT"] = RULES.pop(":STATEMENT")


def written(draw: st.DrawFn, rule: str, depth: int) -> str:
    """Return a text of a rule, in which the names of other rules are replaced in turn."""
    choices = [*RULES[rule], *(RULES["NESTED"] if rule == "STATEMENT" and depth else [])]
    text = draw(st.sampled_from(choices)).replace("INDEX", f"I{depth}")
    for inner in RULES:
        while inner in text:
            text = text.replace(inner, written(draw, inner, depth - 1), 1)
    return text


@st.composite
def scripts(draw: st.DrawFn) -> str:
    """Return a script of a few statements, which ends with all variables in the words of `a`."""
    count = draw(st.integers(2, 7))
    lines = [written(draw, "STATEMENT", 3) for _ in range(count)]
    return "\n".join(["A=s B=2 C=; L=(p 'q r')", *lines, 'a end "$A" "$B" "$C" "${L[@]}"'])
