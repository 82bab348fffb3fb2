//! What a procedure is: numbers, arguments, results.
//!
//! Owns: the trait, and the macro that declares a program's procedures in one table. Never does: sending.

use super::{Outcome, Status};
use crate::{
    rpc::{CallHeader, Credential},
    xdr::{Encoded, Writer, Xdr},
};

/// A procedure of a program, as a type without values.
pub trait Procedure {
    /// Program number.
    const PROGRAM: u32;
    /// Program version.
    const VERSION: u32;
    /// Procedure number.
    const NUMBER: u32;
    /// The RFC's name.
    const NAME: &'static str;
    /// What it is called with.
    type Arguments: Xdr + Send + Sync;
    /// What it gives.
    type Reply: Answer + Send;
}

/// What a procedure gives.
pub trait Answer: Xdr {
    /// [`Status::Ok`] unless it says otherwise.
    fn status(&self) -> Status {
        Status::Ok
    }
}

impl Answer for () {}
impl Answer for u32 {}

impl<T: Xdr, F: Xdr> Answer for Outcome<T, F> {
    fn status(&self) -> Status {
        self.as_ref().err().map_or(Status::Ok, |failed| failed.status)
    }
}

/// A whole call, without its record marker.
pub fn call_record<P: Procedure>(xid: u32, credential: &Credential, arguments: &P::Arguments) -> Encoded {
    let (program, version, procedure) = (P::PROGRAM, P::VERSION, P::NUMBER);
    let mut writer = Writer::new();
    CallHeader { xid, program, version, procedure, credential: credential.clone() }.encode(&mut writer);
    arguments.encode(&mut writer);
    writer.finish()
}

/// Declares a program's procedures: a type for each, and all calls and all replies as enums for whoever serves or reads
/// them.
macro_rules! procedures {
    ($program:path, $version:path; $($number:literal $name:ident $rfc:literal ($args:ty) -> $reply:ty;)*) => {
        $(
            #[doc = concat!("The procedure ", $rfc, ".")]
            #[derive(Clone, Copy, Debug, PartialEq, Eq)]
            pub enum $name {}

            impl $crate::nfs3::Procedure for $name {
                const PROGRAM: u32 = $program;
                const VERSION: u32 = $version;
                const NUMBER: u32 = $number;
                const NAME: &'static str = $rfc;
                type Arguments = $args;
                type Reply = $reply;
            }
        )*

        /// A call's procedure and arguments.
        #[derive(Clone, Debug, PartialEq, Eq)]
        pub enum Call { $(#[doc = $rfc] $name($args)),* }

        /// A procedure's results.
        #[derive(Clone, Debug, PartialEq, Eq)]
        pub enum Reply { $(#[doc = $rfc] $name($reply)),* }

        /// Numbers of the procedures there are.
        pub const PROCEDURES: &[u32] = &[$($number),*];

        impl Call {
            /// The procedure's number.
            pub fn number(&self) -> u32 {
                match self { $(Self::$name(_) => $number),* }
            }

            /// Appends the arguments.
            pub fn encode(&self, writer: &mut $crate::xdr::Writer) {
                match self { $(Self::$name(arguments) => $crate::xdr::Xdr::encode(arguments, writer)),* }
            }

            /// Reads the arguments of the procedure `number`; `None` if there is no such procedure.
            pub fn decode(
                number: u32,
                reader: &mut $crate::xdr::Reader,
            ) -> Option<Result<Self, $crate::xdr::XdrError>> {
                Some(match number {
                    $($number => <$args as $crate::xdr::Xdr>::decode(reader).map(Self::$name),)*
                    _ => return None,
                })
            }
        }

        impl Reply {
            /// The procedure's number.
            pub fn number(&self) -> u32 {
                match self { $(Self::$name(_) => $number),* }
            }

            /// Appends the results.
            pub fn encode(&self, writer: &mut $crate::xdr::Writer) {
                match self { $(Self::$name(results) => $crate::xdr::Xdr::encode(results, writer)),* }
            }

            /// Reads the results of the procedure `number`; `None` if there is no such procedure.
            pub fn decode(
                number: u32,
                reader: &mut $crate::xdr::Reader,
            ) -> Option<Result<Self, $crate::xdr::XdrError>> {
                Some(match number {
                    $($number => <$reply as $crate::xdr::Xdr>::decode(reader).map(Self::$name),)*
                    _ => return None,
                })
            }
        }
    };
}
pub(super) use procedures;
