//! FREE_STATEID and TEST_STATEID (RFC 8881 §18.38, §18.48).

use forebay_proto::{
    nfs4::{
        Stateid, Status,
        ops::{
            free_stateid::FreeStateidArgs,
            test_stateid::{TestStateidArgs, TestStateidOk},
        },
    },
    xdr::List,
};

use super::Context;

/// FREE_STATEID.
pub fn free(cx: &Context<'_>, args: &FreeStateidArgs) -> Result<(), Status> {
    let stateid = cx.real_stateid(&args.stateid)?;
    let client = cx.client()?.id;
    cx.server.files.of_stateid(&stateid)?.free(client, &stateid)
}

/// TEST_STATEID.
pub fn test(cx: &Context<'_>, args: &TestStateidArgs) -> Result<TestStateidOk, Status> {
    let client = cx.client()?.id;
    let judge = |stateid: &Stateid| {
        let result = cx.server.files.of_stateid(stateid).and_then(|table| table.test(client, stateid));
        result.err().unwrap_or(Status::Ok)
    };
    let statuses = args.stateids.iter().map(judge).collect();
    Ok(TestStateidOk { statuses: List::new(statuses).ok_or(Status::ServerFault)? })
}
