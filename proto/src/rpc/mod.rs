//! ONC RPC version 2 (RFC 5531): record marking, call and reply headers, AUTH_NONE and AUTH_SYS.

mod auth;
mod message;
mod record;

pub use auth::{AuthFlavor, AuthSys, Credential};
pub use message::{AcceptStatus, AuthStatus, Call, CallHeader, MessageType, Reply, ReplyHeader, RpcError};
pub use record::{RecordError, RecordReader, marker};

/// The only RPC version there is.
pub const RPC_VERSION: u32 = 2;
