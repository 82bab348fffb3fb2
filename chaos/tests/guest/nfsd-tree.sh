# A real kernel NFS server, v4.1 and v4.2, with the directories that the checks want, on ext4: places in a directory of tmpfs shift when
# names come and go. TASK is what it does beside serving.
modprobe -d /run/kmod -a nfsd loop || exit 97
mount -t nfsd nfsd /proc/fs/nfsd
mount -t tmpfs tmpfs /var/lib/nfs
mkdir -p /var/lib/nfs/v4recovery /mnt/vol
touch /var/lib/nfs/etab /var/lib/nfs/rmtab
truncate -s 192M /tmp/disk
mkfs.ext4 -q -F -b 4096 -m 0 -N 24000 -O ^has_journal /tmp/disk && mount -o loop /tmp/disk /mnt/vol || exit 95
cd /mnt/vol || exit 98
mkdir -m 755 data ro elsewhere && mkdir -m 777 squash anon && mkdir data/below
[ "$TASK" = share ] && chmod 777 data
echo "for its owner" >squash/private && chmod 600 squash/private
echo "to be read" >ro/file
mount -t tmpfs tmpfs data/below -o size=8M
echo deeper >data/below/file

# A bare repository of a few hundred small files.
repository() {
	cat >"$HOME/.gitconfig" <<'GITCONFIG'
[user]
	name = Lab
	email = lab@example.com
[init]
	defaultBranch = main
[gc]
	auto = 0
GITCONFIG
	mkdir /tmp/work && cd /tmp/work && git init -q || exit 96
	for commit in $(seq 0 $((COMMITS - 1))); do
		for file in $(seq 0 24); do
			folder=folder-$(((commit + file) % 7))
			mkdir -p "$folder"
			seq -f "$commit $file %.0f" 0 $((file * 40)) >"$folder/file-$commit-$file"
		done
		echo "after $commit" >file-0
		git add -A && git commit -q -m "Commit $commit" || exit 96
	done
	git clone -q --bare --no-hardlinks . /mnt/vol/data/origin.git || exit 96
	cd /mnt/vol || exit 98
}

if [ "$TASK" = crowd ]; then
	mkdir data/crowd
	for number in $(seq -w 0 9999); do : >"data/crowd/stay-0$number"; done
	repository
fi

exportfs -o rw,sync,no_root_squash,fsid=0,crossmnt '*:/mnt/vol'
exportfs -o rw,sync,no_root_squash,fsid=1 '*:/mnt/vol/data/below'
# Debian's mountd asks this machine's user database for groups, and forgets those that the client sends.
echo >/tmp/nfs.conf && mount --bind /tmp/nfs.conf /etc/nfs.conf
rpc.mountd -V 4 2>/dev/null
echo 2 >/proc/fs/nfsd/nfsv4gracetime
echo 10 >/proc/fs/nfsd/nfsv4leasetime
serve() { rpc.nfsd -N 3 -V 4.1 -V 4.2 4; }
serve
echo "MARK total $(($(stat -f -c '%b * %S' data)))"

# Names come and go in the directory of many until the test ends.
crowd() {
	turn=0
	while [ ! -e /run/lab/end ]; do
		for number in $(seq 50); do : >"data/crowd/host-$turn-$number"; done
		rm data/crowd/host-"$turn"-*
		turn=$((turn + 1))
	done
	echo "$turn times 50 names came and went"
}

# Twice the server forgets everybody: no thread, no session, no open stays.
restart() {
	for turn in 1 2; do
		await "restart-$turn"
		rpc.nfsd 0
		sleep 2
		echo "MARK down-$turn"
		await "start-$turn"
		serve
		echo "MARK up-$turn"
	done
	await end
	lines=$(wc -l <data/ledger)
	check "the ledger is whole" sh -c "seq -f 'line %.0f' 0 $((lines - 1)) | cmp - data/ledger"
	echo "MARK lines $lines"
}

case $TASK in
crowd | restart) "$TASK" ;;
*) await end ;;
esac
finish
