//! COMMIT (RFC 8881 §18.3).

use forebay_proto::nfs4::{Status, Verifier, ops::commit::CommitArgs};

use super::{Context, blocking, regular};

pub async fn run(cx: &Context<'_>, args: &CommitArgs) -> Result<Verifier, Status> {
    let node = regular(cx.file()?)?.clone();
    args.offset.checked_add(u64::from(args.count)).ok_or(Status::Inval)?;
    node.export.writable()?;
    let verifier = cx.server.write_verifier();
    match blocking(move || node.export.source.commit(&node.file)).await? {
        Ok(()) => Ok(verifier),
        Err(error) => {
            // The kernel reports a failed write-back once; whoever has unstable data must send it again.
            cx.server.lost_writes();
            Err(error.into())
        }
    }
}
