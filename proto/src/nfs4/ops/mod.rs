//! The operations: one row each, one file each for arguments and results.
#![allow(missing_docs, reason = "variants carry the RFC's names")]

pub mod access;
pub mod allocate;
pub mod backchannel_ctl;
pub mod bind_conn_to_session;
pub mod close;
pub mod commit;
pub mod copy;
pub mod create;
pub mod create_session;
pub mod delegpurge;
pub mod delegreturn;
pub mod destroy_clientid;
pub mod destroy_session;
pub mod exchange_id;
pub mod free_stateid;
pub mod get_dir_delegation;
pub mod getattr;
pub mod getdeviceinfo;
pub mod getdevicelist;
pub mod getfh;
pub mod getxattr;
pub mod io_advise;
pub mod layoutcommit;
pub mod layoutget;
pub mod layoutreturn;
pub mod link;
pub mod listxattrs;
pub mod lock;
pub mod lockt;
pub mod locku;
pub mod lookup;
pub mod open;
pub mod open_downgrade;
pub mod openattr;
pub mod putfh;
pub mod read;
pub mod read_plus;
pub mod readdir;
pub mod readlink;
pub mod reclaim_complete;
pub mod remove;
pub mod removexattr;
pub mod rename;
pub mod secinfo;
pub mod seek;
pub mod sequence;
pub mod set_ssv;
pub mod setattr;
pub mod setxattr;
pub mod test_stateid;
pub mod verify;
pub mod want_delegation;
pub mod write;

use super::{ChangeInfo, Fattr, Stateid, Status, Verifier};
use crate::xdr::{Reader, Writer, Xdr, XdrError};

/// Status of any kind of result.
trait HasStatus {
    fn status_of(&self) -> Status;
}

impl<T> HasStatus for Result<T, Status> {
    fn status_of(&self) -> Status {
        self.as_ref().err().copied().unwrap_or(Status::Ok)
    }
}

macro_rules! has_status {
    ($($type:ty),*) => { $(impl HasStatus for $type {
        fn status_of(&self) -> Status {
            self.status()
        }
    })* };
}

has_status!(
    lock::LockReply<Stateid>,
    lock::LockReply<()>,
    setattr::SetAttrReply,
    getdeviceinfo::GetDeviceInfoReply,
    layoutget::LayoutGetReply,
    copy::CopyReply
);

macro_rules! operations {
    ($($number:literal $name:ident $rfc:literal ($args:ty) -> $reply:ty;)*) => {
        /// Numbers of operations whose arguments we can read.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[repr(u32)]
        pub enum OpNumber { $($name = $number),* }

        impl OpNumber {
            pub const ALL: &[Self] = &[$(Self::$name),*];

            /// `None` for a number that no operation we can read has.
            pub fn from_number(number: u32) -> Option<Self> {
                match number { $($number => Some(Self::$name),)* _ => None }
            }

            /// The RFC's name.
            pub fn name(self) -> &'static str {
                match self { $(Self::$name => $rfc),* }
            }
        }

        /// An operation and its arguments.
        #[derive(Clone, Debug, PartialEq, Eq)]
        pub enum Op { $($name($args)),* }

        impl Op {
            pub fn number(&self) -> OpNumber {
                match self { $(Self::$name(_) => OpNumber::$name),* }
            }

            /// Reads the arguments of operation `number`.
            pub fn decode_arguments(number: OpNumber, reader: &mut Reader) -> Result<Self, XdrError> {
                match number { $(OpNumber::$name => <$args>::decode(reader).map(Self::$name)),* }
            }

            fn encode_arguments(&self, writer: &mut Writer) {
                match self { $(Self::$name(arguments) => arguments.encode(writer)),* }
            }
        }

        /// The result of an operation.
        #[derive(Clone, Debug, PartialEq, Eq)]
        pub enum OpReply {
            $($name($reply),)*
            /// An operation we do not read, or OP_ILLEGAL: its number, and a status.
            Other(u32, Status),
        }

        impl OpReply {
            pub fn number(&self) -> u32 {
                match self { $(Self::$name(_) => $number,)* Self::Other(number, _) => *number }
            }

            pub fn status(&self) -> Status {
                match self { $(Self::$name(reply) => reply.status_of(),)* Self::Other(_, status) => *status }
            }

            /// The result of operation `number` that failed with `status`, without a body.
            pub fn failed(number: OpNumber, status: Status) -> Self {
                match number { $(OpNumber::$name => Self::$name(<$reply as Failed>::failed(status)),)* }
            }
        }

        impl Xdr for OpReply {
            fn encode(&self, writer: &mut Writer) {
                writer.u32(self.number());
                match self {
                    $(Self::$name(reply) => reply.encode(writer),)*
                    Self::Other(_, status) => status.encode(writer),
                }
            }
            fn decode(reader: &mut Reader) -> Result<Self, XdrError> {
                match reader.u32()? {
                    $($number => Xdr::decode(reader).map(Self::$name),)*
                    number => Status::decode(reader).map(|status| Self::Other(number, status)),
                }
            }
        }
    };
}

/// Every kind of result can say that nothing was done.
trait Failed {
    fn failed(status: Status) -> Self;
}

impl<T> Failed for Result<T, Status> {
    fn failed(status: Status) -> Self {
        Err(status)
    }
}

impl<T> Failed for lock::LockReply<T> {
    fn failed(status: Status) -> Self {
        Self::Err(status)
    }
}

impl Failed for setattr::SetAttrReply {
    fn failed(status: Status) -> Self {
        Self { status, attributes_set: super::Bitmap::EMPTY }
    }
}

impl Failed for getdeviceinfo::GetDeviceInfoReply {
    fn failed(status: Status) -> Self {
        Self::Err(status)
    }
}

impl Failed for layoutget::LayoutGetReply {
    fn failed(status: Status) -> Self {
        Self::Err(status)
    }
}

impl Failed for copy::CopyReply {
    fn failed(status: Status) -> Self {
        Self::Err(status)
    }
}

impl Xdr for Op {
    fn encode(&self, writer: &mut Writer) {
        writer.u32(self.number() as u32);
        self.encode_arguments(writer);
    }
    fn decode(reader: &mut Reader) -> Result<Self, XdrError> {
        let value = reader.u32()?;
        let number = OpNumber::from_number(value).ok_or(XdrError::BadValue { name: "nfs_opnum4", value })?;
        Self::decode_arguments(number, reader)
    }
}

/// RFC 8881 §16.2: the number in the result of an operation that does not exist.
pub const OP_ILLEGAL: u32 = 10_044;
/// The highest operation of minor version 1.
pub const LAST_MINOR_1: u32 = 58;
/// The highest operation of minor version 2, with RFC 8276's.
pub const LAST_MINOR_2: u32 = 75;

operations! {
    3 Access "ACCESS" (access::AccessArgs) -> Result<access::AccessOk, Status>;
    4 Close "CLOSE" (close::CloseArgs) -> Result<Stateid, Status>;
    5 Commit "COMMIT" (commit::CommitArgs) -> Result<Verifier, Status>;
    6 Create "CREATE" (create::CreateArgs) -> Result<create::CreateOk, Status>;
    7 DelegPurge "DELEGPURGE" (delegpurge::DelegPurgeArgs) -> Result<(), Status>;
    8 DelegReturn "DELEGRETURN" (delegreturn::DelegReturnArgs) -> Result<(), Status>;
    9 GetAttr "GETATTR" (getattr::GetAttrArgs) -> Result<Fattr, Status>;
    10 GetFh "GETFH" (()) -> Result<getfh::GetFhOk, Status>;
    11 Link "LINK" (link::LinkArgs) -> Result<ChangeInfo, Status>;
    12 Lock "LOCK" (lock::LockArgs) -> lock::LockReply<Stateid>;
    13 LockT "LOCKT" (lockt::LockTArgs) -> lock::LockReply<()>;
    14 LockU "LOCKU" (locku::LockUArgs) -> Result<Stateid, Status>;
    15 Lookup "LOOKUP" (lookup::LookupArgs) -> Result<(), Status>;
    16 LookupP "LOOKUPP" (()) -> Result<(), Status>;
    17 NVerify "NVERIFY" (verify::VerifyArgs) -> Result<(), Status>;
    18 Open "OPEN" (open::OpenArgs) -> Result<open::OpenOk, Status>;
    19 OpenAttr "OPENATTR" (openattr::OpenAttrArgs) -> Result<(), Status>;
    21 OpenDowngrade "OPEN_DOWNGRADE" (open_downgrade::OpenDowngradeArgs) -> Result<Stateid, Status>;
    22 PutFh "PUTFH" (putfh::PutFhArgs) -> Result<(), Status>;
    23 PutPubFh "PUTPUBFH" (()) -> Result<(), Status>;
    24 PutRootFh "PUTROOTFH" (()) -> Result<(), Status>;
    25 Read "READ" (read::ReadArgs) -> Result<read::ReadOk, Status>;
    26 ReadDir "READDIR" (readdir::ReadDirArgs) -> Result<readdir::ReadDirOk, Status>;
    27 ReadLink "READLINK" (()) -> Result<readlink::ReadLinkOk, Status>;
    28 Remove "REMOVE" (remove::RemoveArgs) -> Result<ChangeInfo, Status>;
    29 Rename "RENAME" (rename::RenameArgs) -> Result<rename::RenameOk, Status>;
    31 RestoreFh "RESTOREFH" (()) -> Result<(), Status>;
    32 SaveFh "SAVEFH" (()) -> Result<(), Status>;
    33 SecInfo "SECINFO" (secinfo::SecInfoArgs) -> Result<secinfo::SecInfoOk, Status>;
    34 SetAttr "SETATTR" (setattr::SetAttrArgs) -> setattr::SetAttrReply;
    37 Verify "VERIFY" (verify::VerifyArgs) -> Result<(), Status>;
    38 Write "WRITE" (write::WriteArgs) -> Result<write::WriteOk, Status>;
    40 BackchannelCtl "BACKCHANNEL_CTL" (backchannel_ctl::BackchannelCtlArgs) -> Result<(), Status>;
    41 BindConnToSession "BIND_CONN_TO_SESSION" (bind_conn_to_session::BindConnArgs)
        -> Result<bind_conn_to_session::BindConnOk, Status>;
    42 ExchangeId "EXCHANGE_ID" (exchange_id::ExchangeIdArgs) -> Result<exchange_id::ExchangeIdOk, Status>;
    43 CreateSession "CREATE_SESSION" (create_session::CreateSessionArgs)
        -> Result<create_session::CreateSessionOk, Status>;
    44 DestroySession "DESTROY_SESSION" (destroy_session::DestroySessionArgs) -> Result<(), Status>;
    45 FreeStateid "FREE_STATEID" (free_stateid::FreeStateidArgs) -> Result<(), Status>;
    46 GetDirDelegation "GET_DIR_DELEGATION" (get_dir_delegation::GetDirDelegationArgs)
        -> Result<get_dir_delegation::GetDirDelegationOk, Status>;
    47 GetDeviceInfo "GETDEVICEINFO" (getdeviceinfo::GetDeviceInfoArgs) -> getdeviceinfo::GetDeviceInfoReply;
    48 GetDeviceList "GETDEVICELIST" (getdevicelist::GetDeviceListArgs)
        -> Result<getdevicelist::GetDeviceListOk, Status>;
    49 LayoutCommit "LAYOUTCOMMIT" (layoutcommit::LayoutCommitArgs) -> Result<layoutcommit::LayoutCommitOk, Status>;
    50 LayoutGet "LAYOUTGET" (layoutget::LayoutGetArgs) -> layoutget::LayoutGetReply;
    51 LayoutReturn "LAYOUTRETURN" (layoutreturn::LayoutReturnArgs) -> Result<layoutreturn::LayoutReturnOk, Status>;
    52 SecInfoNoName "SECINFO_NO_NAME" (secinfo::SecInfoNoNameArgs) -> Result<secinfo::SecInfoOk, Status>;
    53 Sequence "SEQUENCE" (sequence::SequenceArgs) -> Result<sequence::SequenceOk, Status>;
    54 SetSsv "SET_SSV" (set_ssv::SetSsvArgs) -> Result<set_ssv::SetSsvOk, Status>;
    55 TestStateid "TEST_STATEID" (test_stateid::TestStateidArgs) -> Result<test_stateid::TestStateidOk, Status>;
    56 WantDelegation "WANT_DELEGATION" (want_delegation::WantDelegationArgs) -> Result<open::OpenDelegation, Status>;
    57 DestroyClientid "DESTROY_CLIENTID" (destroy_clientid::DestroyClientidArgs) -> Result<(), Status>;
    58 ReclaimComplete "RECLAIM_COMPLETE" (reclaim_complete::ReclaimCompleteArgs) -> Result<(), Status>;
    59 Allocate "ALLOCATE" (allocate::AllocateArgs) -> Result<(), Status>;
    60 Copy "COPY" (copy::CopyArgs) -> copy::CopyReply;
    62 Deallocate "DEALLOCATE" (allocate::AllocateArgs) -> Result<(), Status>;
    63 IoAdvise "IO_ADVISE" (io_advise::IoAdviseArgs) -> Result<io_advise::IoAdviseOk, Status>;
    68 ReadPlus "READ_PLUS" (read::ReadArgs) -> Result<read_plus::ReadPlusOk, Status>;
    69 Seek "SEEK" (seek::SeekArgs) -> Result<seek::SeekOk, Status>;
    72 GetXattr "GETXATTR" (getxattr::GetXattrArgs) -> Result<getxattr::GetXattrOk, Status>;
    73 SetXattr "SETXATTR" (setxattr::SetXattrArgs) -> Result<ChangeInfo, Status>;
    74 ListXattrs "LISTXATTRS" (listxattrs::ListXattrsArgs) -> Result<listxattrs::ListXattrsOk, Status>;
    75 RemoveXattr "REMOVEXATTR" (removexattr::RemoveXattrArgs) -> Result<ChangeInfo, Status>;
}
