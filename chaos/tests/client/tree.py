"""Writes a tree through the PyPI client nfs4fs, reads it back, and prints what it found; the test compares.

usage: tree.py SERVER MINOR-VERSION
"""

import hashlib
import socket
import struct
import sys
import threading

import fsspec

server, minor = sys.argv[1], int(sys.argv[2])


def port_mapper():
    """The client asks port 111 where NFS is, which NFSv4 needs nobody to say. Answers GETPORT and GETADDR alike."""
    listening = socket.create_server((server, 111))
    while True:
        asking, _ = listening.accept()
        while len(marker := asking.recv(4, socket.MSG_WAITALL)) == 4:
            call = asking.recv(struct.unpack(">I", marker)[0] & 0x7FFF_FFFF, socket.MSG_WAITALL)
            xid, _, _, _, version, _ = struct.unpack(">6I", call[:24])
            address = f"{server}.8.1".encode()
            padded = address + bytes(-len(address) % 4)
            told = struct.pack(">I", 2049) if version == 2 else struct.pack(">I", len(address)) + padded
            reply = struct.pack(">6I", xid, 1, 0, 0, 0, 0) + told
            asking.sendall(struct.pack(">I", len(reply) | 1 << 31) + reply)


threading.Thread(target=port_mapper, daemon=True).start()
fs = fsspec.filesystem("nfs4", host=server, root="data", auth="auth_sys", minor_version=minor)
base = f"/python{minor}"
files = {f"{base}/folder-{n % 5}/file-{n}": bytes([n]) * (n * n * 37) for n in range(60)}
files[f"{base}/empty"] = b""
files[f"{base}/large"] = bytes(range(256)) * 12_000

fs.makedirs(base, exist_ok=True)
for n in range(5):
    fs.makedirs(f"{base}/folder-{n}", exist_ok=True)
fs.pipe(files)
fs.mv(f"{base}/empty", f"{base}/moved")
files[f"{base}/moved"] = files.pop(f"{base}/empty")
found = fs.cat(list(files))
assert found == files, "what was read is not what was written"
listed = sorted("/" + path.lstrip("/") for path in fs.find(base))
assert listed == sorted(files), listed
for path in sorted(files):
    assert fs.info(path)["size"] == len(files[path]), path
    print(hashlib.sha256(files[path]).hexdigest(), path[1:])
