//! Names clients send (RFC 8881 §14): what may be a name in a directory.

use forebay_proto::nfs4::Status;

/// Longest name of any Linux file system.
pub const NAME_MAX: usize = 255;

/// Judges a name that is to be found. Bytes that are not UTF-8 may name a file that was made locally.
pub fn existing(name: &[u8]) -> Result<&[u8], Status> {
    match name {
        [] => Err(Status::Inval),
        b"." | b".." => Err(Status::BadName),
        _ if name.contains(&b'/') || name.contains(&0) => Err(Status::BadChar),
        _ if name.len() > NAME_MAX => Err(Status::NameTooLong),
        _ => Ok(name),
    }
}

/// Judges a name that is to be made: UTF-8 only.
pub fn new(name: &[u8]) -> Result<&[u8], Status> {
    if std::str::from_utf8(name).is_err() { Err(Status::Inval) } else { existing(name) }
}

/// What "not found" means for a name: nothing we made can have a name that is not UTF-8.
pub fn missing(name: &[u8], status: Status) -> Status {
    if status == Status::NoEnt && std::str::from_utf8(name).is_err() { Status::Inval } else { status }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names() {
        let long = [b'a'; NAME_MAX + 1];
        for (name, result) in [
            (&b"file"[..], Ok(())),
            ("größe".as_bytes(), Ok(())),
            (b"", Err(Status::Inval)),
            (b".", Err(Status::BadName)),
            (b"..", Err(Status::BadName)),
            (b"...", Ok(())),
            (b"a/b", Err(Status::BadChar)),
            (b"a\0b", Err(Status::BadChar)),
            (&long[1..], Ok(())),
            (&long, Err(Status::NameTooLong)),
            (b"\xff\xfe", Err(Status::Inval)),
        ] {
            assert_eq!(new(name).map(|_| ()), result, "{name:?}");
        }
        assert!(existing(b"\xff").is_ok());
        assert_eq!(missing(b"\xff", Status::NoEnt), Status::Inval);
        assert_eq!(missing(b"a", Status::NoEnt), Status::NoEnt);
    }
}
