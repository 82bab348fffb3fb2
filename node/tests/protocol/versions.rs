//! Callers of other programs, versions, procedures and flavours are told what would do (RFC 5531 §9, RFC 8881 §16.1).

use forebay_proto::{
    nfs4::{PROC_COMPOUND, PROC_NULL, PROGRAM, Status, VERSION},
    rpc::{AcceptStatus, AuthFlavor, AuthStatus, CallHeader, Credential, Reply, ReplyHeader},
    xdr::{Reader, Writer},
};

use crate::common::{Lab, credential};

#[tokio::test]
async fn other_programs_versions_procedures_and_flavours_are_refused_in_rpc_words() {
    let running = Lab::default().start().await;
    let connection = running.connection(0).await;
    let mismatch = AcceptStatus::ProgramMismatch { low: 4, high: 4 };
    let gss = || Credential::Other(AuthFlavor::RPCSEC_GSS, vec![0; 20].into());
    let accepted = ReplyHeader::Accepted;
    for (program, version, procedure, credential, expected) in [
        (PROGRAM, VERSION, PROC_NULL, Credential::None, accepted(AcceptStatus::Success)),
        (PROGRAM, VERSION, PROC_NULL, gss(), accepted(AcceptStatus::Success)),
        (PROGRAM, 3, PROC_NULL, credential(0), accepted(mismatch)),
        (PROGRAM, 3, 1, credential(0), accepted(mismatch)),
        (PROGRAM, 2, 1, credential(0), accepted(mismatch)),
        (PROGRAM, 5, 1, credential(0), accepted(mismatch)),
        (PROGRAM, VERSION, 2, credential(0), accepted(AcceptStatus::ProcedureUnavailable)),
        (100_005, 3, 0, credential(0), accepted(AcceptStatus::ProgramUnavailable)),
        (100_000, 2, 3, credential(0), accepted(AcceptStatus::ProgramUnavailable)),
        (PROGRAM, VERSION, PROC_COMPOUND, gss(), ReplyHeader::AuthError(AuthStatus::TOO_WEAK)),
        (PROGRAM, VERSION, PROC_COMPOUND, credential(0), accepted(AcceptStatus::GarbageArguments)),
    ] {
        let mut writer = Writer::new();
        let header = CallHeader { xid: 7, program, version, procedure, credential };
        header.encode(&mut writer);
        let record = connection.raw(writer.finish()).await.unwrap();
        let reply = Reply::decode(Reader::new(record)).unwrap();
        assert_eq!((reply.xid, reply.header), (7, expected), "{header:?}");
    }
}

#[tokio::test]
async fn a_caller_of_nfs_4_0_or_4_3_is_told_the_minor_version() {
    let running = Lab::default().start().await;
    let connection = running.connection(0).await;
    for minor in [0, 3, u32::MAX] {
        let (status, replies) = connection.compound(minor, &[crate::common::ops::getfh()]).await.unwrap();
        assert_eq!((status, replies.len()), (Status::MinorVersMismatch, 0), "minor version {minor}");
    }
}
