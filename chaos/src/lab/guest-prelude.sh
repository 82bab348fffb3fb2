# What every guest script starts with. A check prints one line, `ok NAME` or `FAIL NAME: why`, and `finish` exits with the number of
# failed checks. dash and coreutils only.
failures=0
LC_ALL=C
export LC_ALL

# With the guest's uptime: where a check took long, one sees it.
ok() {
	read -r _up _ </proc/uptime
	echo "ok $1 @$_up"
}

bad() {
	echo "FAIL $1: $2"
	failures=$((failures + 1))
}

short() { printf '%.200s' "$1"; }

# check NAME COMMAND…: the command must succeed.
check() {
	_name=$1
	shift
	if _said=$("$@" 2>&1); then ok "$_name"; else bad "$_name" "'$*' exited with $?: $(echo "$_said" | tail -n 5 | tr '\n' ' ')"; fi
}

# refused NAME PATTERN COMMAND…: the command must fail, and say why in words that match PATTERN.
refused() {
	_name=$1 _pattern=$2
	shift 2
	if _said=$("$@" 2>&1); then
		bad "$_name" "'$*' succeeded: $_said"
	elif echo "$_said" | grep -Eiq "$_pattern"; then
		ok "$_name"
	else
		bad "$_name" "'$*' said '$_said', not $_pattern"
	fi
}

# same NAME EXPECTED FOUND
same() {
	if [ "$2" = "$3" ]; then ok "$1"; else bad "$1" "expected '$(short "$2")', found '$(short "$3")'"; fi
}

# differ NAME ONE OTHER: neither may be empty.
differ() {
	if [ -n "$2" ] && [ -n "$3" ] && [ "$2" != "$3" ]; then ok "$1"; else bad "$1" "'$2' and '$3'"; fi
}

# as UID COMMAND…: as that user and the group of the same number, with no other groups.
as() {
	_id=$1
	shift
	setpriv --reuid "$_id" --regid "$_id" --clear-groups -- "$@"
}

# mount_nfs VERSION EXPORT DIRECTORY [OPTIONS]; without the mount nothing else makes sense, so it ends the script.
mount_nfs() {
	mkdir -p "$3"
	if ! mount -t nfs -o "vers=$1,proto=tcp,port=${PORT:-2049},timeo=100,retrans=3${4:+,$4}" "$SERVER:$2" "$3"; then
		echo "FAIL mount of $2 with vers=$1: see above; nothing after it was tried"
		exit 99
	fi
}

# await NAME: waits for the test to put a file of that name into this guest's directory.
await() {
	while [ ! -e "/run/lab/$1" ]; do sleep 0.05; done
}

# finish: the only good way to end; a script that stops earlier lacks this line, and the test wants it.
finish() {
	echo "finished, $failures failed"
	exit "$failures"
}

