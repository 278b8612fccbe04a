"""Short scripts, one for each form of bash that a training script may have."""

from __future__ import annotations

LINES = r"""
A=1; [ "$A" = 1 ] && B=2 || B=3; a $B
A=x; if [ $A == y ]; then B=1; elif [ $A != x ]; then B=2; else B=3; fi; a $B
A=5; if [ $A -gt 3 -a $A -lt 9 ]; then a in; else a out; fi
A=5; [ ! $A -eq 5 ] || a five
if test -n ""; then a full; else a empty; fi
A=; [ -z $A ] && a empty; [ $A ] || a not
[[ grpo == gr* ]] && a yes; [[ grpo == "gr*" ]] || a no
A=Qwen3-8B; [[ $A == *8B* && ! $A == *32B* ]] && a small
A=b; [[ $A < c ]] && a less; [[ 10 -gt 9 ]] && a more
A=v1.2; [[ $A =~ ^v[0-9]+\.[0-9]+$ ]] && a version
A=3; (( A > 2 )) && a big; (( A == 3 && A % 2 )) && a odd
A=3; ((A += 4)); ((A++)); a $A $((A ** 2)) $((A > 5 ? 1 : 0)) $((0x10 + 010))
let A=2+3; let "B = A * 2"; a $A $B
A=7; a $((A / 2)) $((-A / 2)) $((-A % 3)) $((A << 2)) $((~A)) $((!A)) $((A & 3 | 8))
A=B; B=4; a $((A + 1)) $((${A} * 2)) $(( (1 + 2) * 3 ))
case x86 in arm*) a 1;; x*|y*) a 2;; *) a 3;; esac
A=npu; case "$A" in "gpu") B=1;; npu) B=16;; esac; a $B
case ab in a?) a one;;& *b) a two;; *) a three;; esac
case a in a) a one;& b) a two;; c) a three;; esac
case "" in ?*) a some;; "") a none;; esac
a ${U:-d} ${U-d} ${U:+x} ${U+x} "${U:-a b}" ${U:-a b}
U=; a "${U:-d}" "${U-d}" "${U:+x}" "${U+x}"
a ${U:=v} $U; : ${W:="x y"}; a "$W"
A=${A:-${B:-${C:-deep}}}; a $A
A=/data/models/Qwen3.tar.gz; a ${A##*/} ${A#*/} ${A%.*} ${A%%.*} ${A%/*} ${#A}
A=a/b/c; a ${A//\//_} ${A/\//-} ${A/#a/z} ${A/%c/y} ${A/b} ${A//[ac]/X}
A=; a "${A/*/z}" "${A//*/z}" "${A/#*/z}" "${A/%*/z}" "${A/?/z}"; A=b; a "${A/*/z}"
A=Qwen; a ${A,,} ${A^^} ${A,} ${A:1} ${A:1:2} ${A: -2} ${A:0:-1}
A=hello; B=A; a ${!B} "${!B}"
A=(1 "2 3" x); a "${A[@]}" ${A[1]} "${A[1]}" ${#A[@]} ${A[-1]} $A "${A[*]}" "${A[@]:1}"
A=(x y z); a "${A[@]:1:1}" "${A[@]/y/w}" "${!A[@]}" "${A[@]#x}" ${#A[0]}
A=(); a "${A[@]}" end ${#A[@]}
A=(1); A+=(2 "3 4"); A[5]=six; a "${A[@]}" "${!A[@]}" ${A[5]}
declare -a A=(p q); declare -A M=([k]=v [l]=w); a "${A[@]}" ${M[k]} "${M[l]}" ${#M[@]}
declare -A M; M[gpu]=8; K=gpu; a ${M[$K]} ${M["gpu"]}
A=([x,y] [1, 2] a [b]c [[1],[2]] ["p q"] [${A}] [a;b|c&d(e)<f> #g]); a "${A[@]}"
f() { local B=([q] r); a "${B[@]}"; }; f; C=(s ['t'] [$(echo u)]); a "${C[@]}"
A=([1]=a [2]=b [x,y] c); a "${A[@]}" "${!A[@]}" x[1, 2] 'D=([e f])' "D=([e f])"
declare -A M=([llama-8b]=1 [llama-70b]=2 [a/b]=3); a ${M[llama-8b]} ${M[llama-70b]} ${M[a/b]}
declare -A M=([Qwen/Qwen2.5-7B]=1 [x:y]=2 [c,d]=3); a ${M[Qwen/Qwen2.5-7B]} ${M[x:y]} ${M[c,d]}
declare -A M; A=a/b; M[$A]=1; M[$A/c-d]=2; M[a.b]=3; a ${M[a/b]} ${M[a/b/c-d]} ${M[$A]} ${M[a.b]}
declare -A M=([ a ]=1 [a]=2 [b c]=3); a ${M[ a ]} ${M[a]} ${M[b c]} ${M["b c"]}
A=(x y [z]); i=2; a ${A[i-1]} ${A[$i-1]} ${A[i - 2]} ${A[$((i-0))]} ${#A[i]}
A=x; A+=y; a $A; A=1; A+=1; a $A
A="a b"; a $A "$A" p$A q"$A"r
A=" lead trail "; a $A; a "$A"; a x$A; a $A"x"
IFS=,; A=1,2,,3; a $A; a "$A"
IFS=:; A=":a:b "; a $A
a 'single $A' "double \$A \" \\ \n" $'ansi\t\'x\x41\n' back\ slash "it's" 'a'\''b'
a "" '' x"" "$U"
a {a,b} x{1..3}y {a,b{c,d}}e {x} {} {1..5..2} {c..a} {01..03} "{a,b}" {a,"b c"}
a k={"a":1,"b":2} '{"a": 1}' [1,2] ['x','y'] "['x','y']"
a ~ ~/x x~ "~/x" k=~/x --k=~/x a.b=~/x
A=~/m; B=x:~/n; a $A $B
a $(echo x y) "$(echo x  y)" `echo z` $(printf '%s-%s' 1 2)
a $(basename /x/y.sh) $(basename /x/y.sh .sh) $(dirname /x/y/z) $(dirname z) $(basename x/)
A=Qwen/Qwen3-8B; a $(echo $A | tr '/' '-') $(echo "$A" | tr A-Z a-z) $(echo $A | cut -d/ -f2)
A=Qwen/Qwen3-8B; a $(basename $A | tr '[:upper:]' '[:lower:]')
a $(seq 1 3) $(seq 3 -1 1) "$(seq 2)"
for i in 1 2 3; do A=$i; done; a $A $i
for i in a b c; do [ $i = b ] && continue; a $i; [ $i = c ] && break; done
for i in a b c; do if [ $i = b ]; then break; fi; done; a $i
for ((i=0; i<3; i++)); do A+=$i; done; a $A $i
i=0; while [ $i -lt 3 ]; do i=$((i+1)); done; a $i
i=5; until ((i <= 2)); do ((i--)); done; a $i
for x in "$@"; do a never; done; a $# end
set -- p "q r"; a "$@" $# $1 "$2"; shift; a "$1" ${2:-none}; for x; do a got "$x"; done
set -- a b; while [ $# -gt 0 ]; do case $1 in a) A=$2; shift 2;; *) B=$1; shift;; esac; done; a $A$B
f() { a "$1" $#; }; f x y; f "x y"
f() { local A=in; B=$A; }; A=out; f; a $A $B
f() { local A; a "${A-unset}"; A=2; }; A=1; f; a $A
function g { echo "v-$1"; }; a $(g 1) "$(g 2)"
f() { return 3; }; f && a zero || a other; f; a $?
f() { if [ "$1" = 1 ]; then return 0; fi; A=late; }; f 1; a ${A-none}; f 2; a $A
f() { g; }; g() { a nested; }; f
f() { for x in 1 2; do [ $x = 2 ] && return; a $x; done; }; f; a done
A=1; ( A=2; a $A ); a $A
A=1; { A=2; }; a $A
A=1; echo x | A=2; a $A
A=1 a $A; A=3 true; a ${A-none}
export A=1 B="x y"; readonly C=3; a $A "$B" $C
export A; A=5; a $A
unset A; A=1; unset A; a ${A-gone}
read -r A B <<< "x y z"; a $A "$B"
read A <<< 'p\q'; read -r B <<< 'p\q'; a "$A" "$B"
IFS=, read -r A B <<< "1,2,3"; a $A $B
IFS=/ read -ra A <<< "a/b c/d"; a "${A[@]}" ${#A[@]}
printf -v A '%s/%s' x y; a $A
eval "A=1 B=2"; a $A $B
C="a x"; $C y; eval $C z
C=(a --m 1); "${C[@]}" --n 2
A=1; eval "B=\$A"; a $B
set -e; false || true; [ 1 = 2 ] && A=1; a reached
set -e; A=1; [ $A = 2 ]; a never
set -e; if false; then :; fi; a here; false; a never
set -u; a ${A:-x}; a $HOME
set -o pipefail; false | true && a zero || a failed
false | true && a zero
! false && a negated; ! true || a negated2
true && false || a third
false && a no; a yes
if ! [ -n "" ]; then a in; fi
if [ "x" ]; then a x; fi; if [ ]; then a y; fi
[ a = a ] ; a $?; [ a = b ] ; a $?
A=1; if [ "${A}" == "1" ] || [ "${A}" == "2" ]; then a either; fi
A=true; if $A; then a ran; fi; B=false; if ! $B; then a not; fi
A=True; if [ "${A,,}" = "true" ]; then a lower; fi
A=08; [ $A -eq 8 ] && a decimal
A=x; [ $A -eq 8 ] 2>/dev/null || a failed
[ -n "$A" -o -n x ] && a or
[ "a b" = "a b" ] && a same
A="x"; [[ -n $A && -z "" ]] && a both; [[ -v A ]] && a set
: "${A:=1}" "${B:=2}"; a $A $B
A='$HOME'; a $A "$A"; A="\$HOME"; a $A
a "$(echo "in $(echo deep)")" "a$(echo b)c"
A=$'x\ty'; a $A "$A"
B=2; A="$B"'$B'"\"$B\""; a $A
a $((1+1))$((2+2)) x$((3))y "$((4 * 5))"
N=4; G=8; a $((N*G)) $(( N * G / 2 )) $((${N} * ${G})) $(($N*$G))
N=4; a ${N}x$N_x ${N}_x
f() { A=$1; shift; B=("$@"); }; f x y "z w"; a $A "${B[@]}"
A=(a b); B=("${A[@]}" c); a "${B[@]}"
A="--x 1"; B=($A --y "2 3"); a "${B[@]}" ${#B[@]}
A=${B:+--flag $B}; a [$A]; B=1; A=${B:+--flag $B}; a $A
A=${U:-"x  y"}; a "$A" $A; a ${U:-'p  q'}; a "${U:-'p q'}"
A='a"b'; a $A "$A" '"'; a "a'b"
A=10; until [ $A -le 7 ]; do A=$((A-1)); [ $A = 8 ] && break; done; a $A
exec 2>/dev/null; a after
trap 'echo' EXIT; a trapped
time a timed
a first; exit 0; a never
(exit 3) || a failed
if (( $# == 0 )); then set -- dflt; fi; a "$1"
A=${1:-4}; B=${2-none}; a $A $B ${@:2} "${@:1}"
: ; a ok; { a grouped; } ; ( a sub )
if true; then a t; fi; if false; then a f; else a e; fi
A=1; if [ $A = 1 ]; then if [ $A = 2 ]; then a x; else a y; fi; fi
A=x; A=$A; A="$A$A"; a $A
a -- -x --y=1 =z k=v
a "$HOME/x" ${HOME}/y $HOME
a ${HOME:-none} ${HOME##*/} "${HOME:+set}"
A=$HOME/a/b; a ${A##*/} ${A%/*} $(basename $A) $(dirname $A)
A="$HOME"; a "${A}/x" "${A:-d}"
a <<< "text" x
a x < /dev/null y
if [[ "$(echo x)" == "x" ]]; then a sub; fi
[[ x == x ]] && [[ y != z ]] && a chain
A=1; B=$A C=$B; a $B $C
A=(z); A=scalar; a "${A[@]}" $A
printf '%s\n' x | a piped
A=$(printf '%s,' x y z); a ${A%,}
A=$(IFS=,; echo "1,2"); a $A
J=(a b c); A=$(IFS=,; echo "${J[*]}"); a $A
x() { echo $(( $1 * 2 )); }; a $(x 4)
f() { echo out; a inside >&2; }; A=$(f); a $A
A='x*y'; a "$A"; set -f; a $A
break; continue; a on
for i in {0..2}; do for j in x y; do [ $j = y ] && continue 2; a $i$j; done; done; a $i$j
for i in 1 2 3; do for j in 1 2; do [ $i = 2 ] && break 2; a $i$j; done; done; a $i$j
A=$(false); a $?; A=$(exit 3) || a f$?; A=$(true) && a t
f() { local x; x=$(echo in); echo "$x"; return 0; }; A="$(f)" || A=no; a $A
set -- a b c; a "${@:2}" "${@: -1}" "$*" "${*:1:2}" ${#}
A=(a b); IFS=-; a "${A[*]}"; unset IFS; a "${A[*]}"
a ~x.y=1 ~trainer.logger +x.y=1 ++z=2
A=$(printf '%02d' 3); a $A $(printf '%3s|' x); A=1; export -n A; a $A
A="x=1;y=2"; IFS=';' read -ra P <<< "$A"; for p in "${P[@]}"; do a "${p%%=*}" "${p##*=}"; done
A=(a b c); a ${A[@]: -1} ${A[@]::2} "${A[@]/#/p-}" "${A[@]/%/.x}"
A=3; a $((A--)) $A $((++A)) $((A+=2)) $((A|8)) $((A^1))
[ x = x ]; A=$?; a $A
A=5; A=$((A>3?A*2:A)); a $A
A=0; ((A)) && a yes || a no; ((A = 5)); a $A
A=a; A=${A/a/b}${A}; a $A
A="x y z"; B=(${A}); a ${#B[@]} ${B[2]}
A="k1=v1 k2=v2"; for p in $A; do a ${p%%=*} ${p#*=}; done
"""
BLOCKS = r"""
A=(--x 1 # a comment
 --y 2
)
a "${A[@]}"
%%
A=$(cat <<EOF
x $HOME
EOF
); a "$A"
%%
read -r -d '' A <<EOF
  --x 1 \
  --y '$HOME'
EOF
a $A; a "$A"
%%
read -r -d '' A <<'EOF'
  --x $HOME \
  --y 2
EOF
a $A; a "$A"
%%
read -r -d '' A <<-EOF
	tab $((1+1))
		two
	EOF
a "$A"
%%
while read -r l; do A+="<$l>"; done <<< "x
y"; a $A
%%
mapfile -t A <<< "1
2"; a "${A[@]}"
%%
A=1 # comment
a $A # another 'quote
%%
a x \
  y \
  # comment ends it
a z
%%
a x \
  # y \
  --z 1
%%
A=1 \
  # B=2 \
a $A
%%
A=(x # y \
 z \
 # w \
)
a "${A[@]}" \
  # q \
  > /dev/stdout
%%
A=(--x [a,b] # it's [c]
  --y [d.e] [{1,2}] "[f g]" k[l m]); A+=([z.y] [@]); a "${A[@]}"
%%
a "multi
line" x
%%
A="x	y
z"; a $A
%%
cat <<EOF > /dev/null
a not run $(echo x)
EOF
a after
"""
FORMS = [*LINES.strip("\n").split("\n"), *BLOCKS.strip("\n").split("\n%%\n")]
