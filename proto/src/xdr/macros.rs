//! Declares a type and its codec from one description, so that encode and decode cannot drift apart.

/// A struct: fields in wire order.
macro_rules! xdr_struct {
    ($(#[$meta:meta])* pub struct $name:ident { $($(#[$field_meta:meta])* $field:ident: $type:ty),* $(,)? }) => {
        $(#[$meta])*
        #[derive(Clone, Debug, PartialEq, Eq)]
        pub struct $name { $($(#[$field_meta])* pub $field: $type),* }

        impl $crate::xdr::Xdr for $name {
            fn encode(&self, writer: &mut $crate::xdr::Writer) {
                $(self.$field.encode(writer);)*
            }
            fn decode(reader: &mut $crate::xdr::Reader) -> Result<Self, $crate::xdr::XdrError> {
                Ok(Self { $($field: $crate::xdr::Xdr::decode(reader)?),* })
            }
        }
    };
}

/// An enum of known values: any other is an error.
macro_rules! xdr_enum {
    ($(#[$meta:meta])* pub enum $name:ident { $($(#[$variant_meta:meta])* $variant:ident = $value:expr),* $(,)? }) => {
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum $name { $($(#[$variant_meta])* $variant = $value),* }

        impl $crate::xdr::Xdr for $name {
            fn encode(&self, writer: &mut $crate::xdr::Writer) {
                writer.u32(*self as u32);
            }
            fn decode(reader: &mut $crate::xdr::Reader) -> Result<Self, $crate::xdr::XdrError> {
                match reader.u32()? {
                    $(value if value == $value as u32 => Ok(Self::$variant),)*
                    value => Err($crate::xdr::XdrError::BadValue { name: stringify!($name), value }),
                }
            }
        }
    };
}

/// A discriminated union: each arm has a value and at most one item.
macro_rules! xdr_union {
    ($(#[$meta:meta])* pub enum $name:ident {
        $($(#[$arm_meta:meta])* $value:literal => $variant:ident $(($type:ty))?),* $(,)?
    }) => {
        $(#[$meta])*
        #[derive(Clone, Debug, PartialEq, Eq)]
        pub enum $name { $($(#[$arm_meta])* $variant $(($type))?),* }

        impl $crate::xdr::Xdr for $name {
            fn encode(&self, writer: &mut $crate::xdr::Writer) {
                match self { $(
                    $crate::xdr::xdr_union!(@pattern $variant item $($type)?) => {
                        writer.u32($value);
                        $crate::xdr::xdr_union!(@encode item writer $($type)?);
                    }
                )* }
            }
            fn decode(reader: &mut $crate::xdr::Reader) -> Result<Self, $crate::xdr::XdrError> {
                match reader.u32()? {
                    $($value => Ok($crate::xdr::xdr_union!(@decode $variant reader $($type)?)),)*
                    value => Err($crate::xdr::XdrError::BadValue { name: stringify!($name), value }),
                }
            }
        }
    };
    (@pattern $variant:ident $item:ident) => { Self::$variant };
    (@pattern $variant:ident $item:ident $type:ty) => { Self::$variant($item) };
    (@encode $item:ident $writer:ident) => {};
    (@encode $item:ident $writer:ident $type:ty) => { $crate::xdr::Xdr::encode($item, $writer) };
    (@decode $variant:ident $reader:ident) => { Self::$variant };
    (@decode $variant:ident $reader:ident $type:ty) => { Self::$variant(<$type as $crate::xdr::Xdr>::decode($reader)?) };
}

pub(crate) use {xdr_enum, xdr_struct, xdr_union};
