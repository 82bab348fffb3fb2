//! EXCHANGE_ID (RFC 8881 §18.35).

use forebay_proto::{
    nfs4::{
        ImplementationId, LimitedOpaque, NfsTime, Status, exchange_id,
        ops::exchange_id::{ExchangeIdArgs, ExchangeIdOk, ServerOwner, StateProtectArgs, StateProtectReply},
    },
    xdr::List,
};

use super::Context;
use crate::state::clients::ExchangeRequest;

pub async fn run(cx: &Context<'_>, args: &ExchangeIdArgs) -> Result<ExchangeIdOk, Status> {
    // Nobody is fenced, since nothing is copied between servers: the flag is taken and not given back.
    if args.flags & !exchange_id::ARGUMENT_MASK != 0 {
        return Err(Status::Inval);
    }
    match &args.state_protect {
        StateProtectArgs::None => {}
        // Both need RPCSEC_GSS, which is not served.
        StateProtectArgs::MachineCredential(_) | StateProtectArgs::Ssv(_) => return Err(Status::Inval),
    }
    let server = cx.server;
    let owner = &args.owner.owner;
    let verifier = args.owner.verifier;
    let on_record = |record: &forebay_meta::state::ClientRecord| {
        record.verifier == verifier && record.clientid >> 32 != server.epoch()
    };
    let may_reclaim =
        server.in_grace() && server.plane.read(|state| state.clients.of_owner(owner).is_some_and(on_record));
    let request = ExchangeRequest { owner, verifier, principal: cx.principal(), flags: args.flags, may_reclaim };
    let has_state = |client| server.files.has_state(client);
    let exchanged = server.clients.lock().exchange_id(request, has_state, server.lease_ms(), server.now())?;
    if let Some(removed) = exchanged.removed {
        server.free_client(removed).await;
    }
    let confirmed = if exchanged.confirmed { exchange_id::CONFIRMED_R } else { 0 };
    let cluster = LimitedOpaque::new(server.identity.cluster.clone()).ok_or(Status::ServerFault)?;
    Ok(ExchangeIdOk {
        clientid: exchanged.clientid,
        sequence: exchanged.sequence,
        flags: exchange_id::USE_NON_PNFS | confirmed,
        state_protect: StateProtectReply::None,
        server_owner: ServerOwner { minor_id: 0, major_id: cluster.clone() },
        server_scope: cluster,
        implementation: implementation(),
    })
}

fn implementation() -> List<ImplementationId, 1> {
    let name = concat!("forebay ", env!("CARGO_PKG_VERSION"));
    let id = LimitedOpaque::new("forebay.invalid").zip(LimitedOpaque::new(name));
    let date = NfsTime::default();
    let one = id.map(|(domain, name)| ImplementationId { domain, name, date }).into_iter().collect();
    List::new(one).unwrap_or_default()
}
