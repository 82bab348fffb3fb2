//! COMMIT (RFC 8881 §18.3).

use forebay_proto::nfs4::{Status, Verifier, ops::commit::CommitArgs};

use super::{Context, regular};

pub async fn run(cx: &Context<'_>, args: &CommitArgs) -> Result<Verifier, Status> {
    let node = regular(cx.file()?)?.clone();
    args.offset.checked_add(u64::from(args.count)).ok_or(Status::Inval)?;
    node.export.writable()?;
    let verifier = cx.server.write_verifier();
    match node.commit(cx.caller).await {
        Ok(sources) => Ok(mixed(verifier, sources)),
        Err(error) => {
            // A failed write-back is reported once; whoever has unstable data must send it again.
            if node.has_our_verifier() {
                cx.server.lost_writes();
            }
            Err(error)
        }
    }
}

/// One verifier of ours and the source's: it changes when either does.
pub(super) fn mixed(ours: Verifier, source: u64) -> Verifier {
    (u64::from_be_bytes(ours) ^ source).to_be_bytes()
}
