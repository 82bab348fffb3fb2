# A client of a cache whose source stops answering and comes back.
mount_nfs 4.2 /data /mnt/data
cd /mnt/data || exit 98
same "a file is read" "known" "$(cat known)"
echo "MARK read"
await stalled
echo 3 >/proc/sys/vm/drop_caches
began=$(cut -d. -f1 /proc/uptime)
same "what is cached is read while the source stalls" "known" "$(cat known)"
took=$(($(cut -d. -f1 /proc/uptime) - began))
if [ "$took" -le 30 ]; then ok "in $took s"; else bad "what is cached is read soon" "$took s"; fi
(cat unknown >/tmp/unknown; echo "$?" >/tmp/status) &
sleep 3
refused "what is not cached is waited for" "No such file" cat /tmp/status
echo "MARK waiting"
await going
wait
same "and comes when the source is back" "0 unknown" "$(cat /tmp/status /tmp/unknown | tr '\n' ' ' | sed 's/ $//')"
check "a new file" sh -c 'echo new >new && test "$(cat new)" = new'
finish
