//! TEST_STATEID (RFC 8881 §18.48).
#![allow(missing_docs, reason = "fields carry the RFC's meanings")]

use crate::{
    limits::TEST_STATEIDS_MAX,
    nfs4::{Stateid, Status},
    xdr::{List, xdr_struct},
};

xdr_struct! { pub struct TestStateidArgs { stateids: List<Stateid, TEST_STATEIDS_MAX> } }
xdr_struct! { pub struct TestStateidOk { statuses: List<Status, TEST_STATEIDS_MAX> } }
