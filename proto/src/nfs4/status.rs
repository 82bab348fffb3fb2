//! `nfsstat4` (RFC 8881 §15, RFC 7862 §11, RFC 8276 §8).

use crate::xdr::{Reader, Writer, Xdr, XdrError};

macro_rules! statuses {
    ($($value:literal $variant:ident $rfc:literal),* $(,)?) => {
        /// What became of an operation. Values no RFC names decode to [`Status::Unknown`].
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[allow(missing_docs)]
        pub enum Status { $($variant,)* Unknown(u32) }

        impl Status {
            /// Every status with a name.
            pub const NAMED: &[Self] = &[$(Self::$variant),*];

            /// The number on the wire.
            pub fn number(self) -> u32 {
                match self { $(Self::$variant => $value,)* Self::Unknown(value) => value }
            }

            /// The RFC's name without `NFS4ERR_`.
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
    0 Ok "OK", 1 Perm "PERM", 2 NoEnt "NOENT", 5 Io "IO", 6 Nxio "NXIO", 13 Access "ACCESS", 17 Exist "EXIST",
    18 Xdev "XDEV", 20 NotDir "NOTDIR", 21 IsDir "ISDIR", 22 Inval "INVAL", 27 Fbig "FBIG", 28 NoSpc "NOSPC",
    30 Rofs "ROFS", 31 Mlink "MLINK", 63 NameTooLong "NAMETOOLONG", 66 NotEmpty "NOTEMPTY", 69 Dquot "DQUOT",
    70 Stale "STALE",
    10001 BadHandle "BADHANDLE", 10003 BadCookie "BAD_COOKIE", 10004 NotSupp "NOTSUPP", 10005 TooSmall "TOOSMALL",
    10006 ServerFault "SERVERFAULT", 10007 BadType "BADTYPE", 10008 Delay "DELAY", 10009 Same "SAME",
    10010 Denied "DENIED", 10011 Expired "EXPIRED", 10012 Locked "LOCKED", 10013 Grace "GRACE",
    10014 FhExpired "FHEXPIRED", 10015 ShareDenied "SHARE_DENIED", 10016 WrongSec "WRONGSEC",
    10017 ClidInUse "CLID_INUSE", 10018 Resource "RESOURCE", 10019 Moved "MOVED", 10020 NoFileHandle "NOFILEHANDLE",
    10021 MinorVersMismatch "MINOR_VERS_MISMATCH", 10022 StaleClientid "STALE_CLIENTID",
    10023 StaleStateid "STALE_STATEID", 10024 OldStateid "OLD_STATEID", 10025 BadStateid "BAD_STATEID",
    10026 BadSeqid "BAD_SEQID", 10027 NotSame "NOT_SAME", 10028 LockRange "LOCK_RANGE", 10029 Symlink "SYMLINK",
    10030 RestoreFh "RESTOREFH", 10031 LeaseMoved "LEASE_MOVED", 10032 AttrNotSupp "ATTRNOTSUPP",
    10033 NoGrace "NO_GRACE", 10034 ReclaimBad "RECLAIM_BAD", 10035 ReclaimConflict "RECLAIM_CONFLICT",
    10036 BadXdr "BADXDR", 10037 LocksHeld "LOCKS_HELD", 10038 OpenMode "OPENMODE", 10039 BadOwner "BADOWNER",
    10040 BadChar "BADCHAR", 10041 BadName "BADNAME", 10042 BadRange "BAD_RANGE", 10043 LockNotSupp "LOCK_NOTSUPP",
    10044 OpIllegal "OP_ILLEGAL", 10045 Deadlock "DEADLOCK", 10046 FileOpen "FILE_OPEN",
    10047 AdminRevoked "ADMIN_REVOKED", 10048 CbPathDown "CB_PATH_DOWN", 10049 BadIomode "BADIOMODE",
    10050 BadLayout "BADLAYOUT", 10051 BadSessionDigest "BAD_SESSION_DIGEST", 10052 BadSession "BADSESSION",
    10053 BadSlot "BADSLOT", 10054 CompleteAlready "COMPLETE_ALREADY",
    10055 ConnNotBoundToSession "CONN_NOT_BOUND_TO_SESSION", 10056 DelegAlreadyWanted "DELEG_ALREADY_WANTED",
    10057 BackChanBusy "BACK_CHAN_BUSY", 10058 LayoutTryLater "LAYOUTTRYLATER",
    10059 LayoutUnavailable "LAYOUTUNAVAILABLE", 10060 NoMatchingLayout "NOMATCHING_LAYOUT",
    10061 RecallConflict "RECALLCONFLICT", 10062 UnknownLayoutType "UNKNOWN_LAYOUTTYPE",
    10063 SeqMisordered "SEQ_MISORDERED", 10064 SequencePos "SEQUENCE_POS", 10065 ReqTooBig "REQ_TOO_BIG",
    10066 RepTooBig "REP_TOO_BIG", 10067 RepTooBigToCache "REP_TOO_BIG_TO_CACHE",
    10068 RetryUncachedRep "RETRY_UNCACHED_REP", 10069 UnsafeCompound "UNSAFE_COMPOUND", 10070 TooManyOps "TOO_MANY_OPS",
    10071 OpNotInSession "OP_NOT_IN_SESSION", 10072 HashAlgUnsupp "HASH_ALG_UNSUPP", 10074 ClientidBusy "CLIENTID_BUSY",
    10075 PnfsIoHole "PNFS_IO_HOLE", 10076 SeqFalseRetry "SEQ_FALSE_RETRY", 10077 BadHighSlot "BAD_HIGH_SLOT",
    10078 DeadSession "DEADSESSION", 10079 EncrAlgUnsupp "ENCR_ALG_UNSUPP", 10080 PnfsNoLayout "PNFS_NO_LAYOUT",
    10081 NotOnlyOp "NOT_ONLY_OP", 10082 WrongCred "WRONG_CRED", 10083 WrongType "WRONG_TYPE",
    10084 DirDelegUnavail "DIRDELEG_UNAVAIL", 10085 RejectDeleg "REJECT_DELEG", 10086 ReturnConflict "RETURNCONFLICT",
    10087 DelegRevoked "DELEG_REVOKED", 10088 PartnerNotSupp "PARTNER_NOTSUPP", 10089 PartnerNoAuth "PARTNER_NO_AUTH",
    10090 UnionNotSupp "UNION_NOTSUPP", 10091 OffloadDenied "OFFLOAD_DENIED", 10092 WrongLfs "WRONG_LFS",
    10093 BadLabel "BADLABEL", 10094 OffloadNoReqs "OFFLOAD_NO_REQS", 10095 NoXattr "NOXATTR",
    10096 Xattr2Big "XATTR2BIG",
}

impl Xdr for Status {
    fn encode(&self, writer: &mut Writer) {
        writer.u32(self.number());
    }
    fn decode(reader: &mut Reader) -> Result<Self, XdrError> {
        reader.u32().map(Self::from)
    }
}

/// Most results: a body when all went well, nothing but the status when not.
impl<T: Xdr> Xdr for Result<T, Status> {
    fn encode(&self, writer: &mut Writer) {
        match self {
            Ok(body) => {
                Status::Ok.encode(writer);
                body.encode(writer);
            }
            Err(status) => status.encode(writer),
        }
    }
    fn decode(reader: &mut Reader) -> Result<Self, XdrError> {
        match Status::decode(reader)? {
            Status::Ok => T::decode(reader).map(Ok),
            status => Ok(Err(status)),
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
