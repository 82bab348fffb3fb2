//! `nfsstat3` (RFC 1813 §2.6), and results that depend on it. `mountstat3` has the same numbers.
#![allow(missing_docs, reason = "variants carry the RFC's names")]

use crate::xdr::{Reader, Writer, Xdr, XdrError};

macro_rules! statuses {
    ($($value:literal $variant:ident $rfc:literal),* $(,)?) => {
        /// What became of a call.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum Status {
            $($variant,)*
            /// A number the RFC does not have; never 0.
            Unknown(u32),
        }

        impl Status {
            /// All that have a name.
            pub const NAMED: &[Self] = &[$(Self::$variant),*];

            /// The number on the wire.
            pub fn number(self) -> u32 {
                match self { $(Self::$variant => $value,)* Self::Unknown(value) => value }
            }

            /// The RFC's name without its `NFS3ERR_`.
            pub fn name(self) -> &'static str {
                match self { $(Self::$variant => $rfc,)* Self::Unknown(_) => "unknown" }
            }
        }

        impl From<u32> for Status {
            fn from(value: u32) -> Self {
                match value { $($value => Self::$variant,)* value => Self::Unknown(value) }
            }
        }
    };
}

statuses! {
    0 Ok "OK", 1 Perm "PERM", 2 NoEnt "NOENT", 5 Io "IO", 6 Nxio "NXIO", 13 Access "ACCES", 17 Exist "EXIST",
    18 Xdev "XDEV", 19 NoDev "NODEV", 20 NotDir "NOTDIR", 21 IsDir "ISDIR", 22 Inval "INVAL", 27 Fbig "FBIG",
    28 NoSpc "NOSPC", 30 Rofs "ROFS", 31 Mlink "MLINK", 63 NameTooLong "NAMETOOLONG", 66 NotEmpty "NOTEMPTY",
    69 Dquot "DQUOT", 70 Stale "STALE", 71 Remote "REMOTE", 10001 BadHandle "BADHANDLE", 10002 NotSync "NOT_SYNC",
    10003 BadCookie "BAD_COOKIE", 10004 NotSupp "NOTSUPP", 10005 TooSmall "TOOSMALL", 10006 ServerFault "SERVERFAULT",
    10007 BadType "BADTYPE", 10008 Jukebox "JUKEBOX",
}

impl Xdr for Status {
    fn encode(&self, writer: &mut Writer) {
        writer.u32(self.number());
    }
    fn decode(reader: &mut Reader) -> Result<Self, XdrError> {
        reader.u32().map(Self::from)
    }
}

/// A result that is not what was asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Failed<F> {
    /// Why; never [`Status::Ok`].
    pub status: Status,
    /// What comes along all the same, mostly attributes.
    pub told: F,
}

/// What a procedure gives: `T` when all went well, `F` with the status when not.
pub type Outcome<T, F> = Result<T, Failed<F>>;

impl<T: Xdr, F: Xdr> Xdr for Outcome<T, F> {
    fn encode(&self, writer: &mut Writer) {
        match self {
            Ok(body) => {
                Status::Ok.encode(writer);
                body.encode(writer);
            }
            Err(failed) => {
                failed.status.encode(writer);
                failed.told.encode(writer);
            }
        }
    }
    fn decode(reader: &mut Reader) -> Result<Self, XdrError> {
        match Status::decode(reader)? {
            Status::Ok => T::decode(reader).map(Ok),
            status => Ok(Err(Failed { status, told: F::decode(reader)? })),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_come_back_as_the_same_status() {
        for &status in Status::NAMED {
            assert_eq!(Status::from(status.number()), status);
        }
        assert_eq!(Status::from(4711), Status::Unknown(4711));
    }
}
