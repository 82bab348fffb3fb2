//! File attributes (RFC 8881 §5, RFC 7862 §12.2, RFC 8276 §8.2): the bitmap, the encoded list, the values.
//!
//! Invariant: one table gives number, name, type and order, so encoding follows the bitmap exactly.

use bytes::Bytes;

use super::{FileHandle, FileType, Fsid, NfsTime, Status, types::DeviceNumbers};
use crate::{
    limits::{ATTRIBUTES_MAX, BITMAP_WORDS, BITMAP_WORDS_MAX, OPAQUE_LIMIT},
    xdr::{List, Opaque, Reader, Writer, Xdr, XdrError, xdr_struct},
};

/// `bitmap4`, as far as attributes have numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, Hash)]
pub struct Bitmap {
    words: [u32; BITMAP_WORDS],
    beyond: bool,
}

impl Bitmap {
    /// No bit.
    pub const EMPTY: Self = Self { words: [0; BITMAP_WORDS], beyond: false };

    /// The bits of `attrs`.
    pub const fn of(attrs: &[Attr]) -> Self {
        let mut bitmap = Self::EMPTY;
        let mut i = 0;
        while i < attrs.len() {
            let number = attrs[i] as usize;
            bitmap.words[number / 32] |= 1 << (number % 32);
            i += 1;
        }
        bitmap
    }

    /// [`Bitmap::union`] for constants.
    pub const fn union_const(self, other: Self) -> Self {
        let (mut words, mut i) = (self.words, 0);
        while i < BITMAP_WORDS {
            words[i] |= other.words[i];
            i += 1;
        }
        Self { words, beyond: self.beyond || other.beyond }
    }

    /// Bits that are not in `other`.
    pub const fn without_const(self, other: Self) -> Self {
        let (mut words, mut i) = (self.words, 0);
        while i < BITMAP_WORDS {
            words[i] &= !other.words[i];
            i += 1;
        }
        Self { words, beyond: self.beyond }
    }

    /// Whether `number` is set.
    pub fn has_number(&self, number: u32) -> bool {
        self.words.get(number as usize / 32).is_some_and(|word| word & (1 << (number % 32)) != 0)
    }

    /// Whether `attr` is set.
    pub fn has(&self, attr: Attr) -> bool {
        self.has_number(attr as u32)
    }

    /// Sets `attr`.
    pub fn insert(&mut self, attr: Attr) {
        self.words[attr as usize / 32] |= 1 << (attr as u32 % 32);
    }

    /// Sets `number`, if it is among those kept.
    pub fn insert_number(&mut self, number: u32) {
        if let Some(word) = self.words.get_mut(number as usize / 32) {
            *word |= 1 << (number % 32);
        }
    }

    /// Words that the bitmap takes on the wire, without their count.
    pub fn encoded_words(&self) -> usize {
        if self.beyond {
            return BITMAP_WORDS + 1;
        }
        BITMAP_WORDS - self.words.iter().rev().take_while(|word| **word == 0).count()
    }

    /// Clears `attr`.
    pub fn remove(&mut self, attr: Attr) {
        self.words[attr as usize / 32] &= !(1 << (attr as u32 % 32));
    }

    /// Bits in both.
    pub fn intersection(&self, other: &Self) -> Self {
        let mut words = self.words;
        words.iter_mut().zip(other.words).for_each(|(word, other)| *word &= other);
        Self { words, beyond: self.beyond && other.beyond }
    }

    /// Bits in either.
    pub fn union(&self, other: &Self) -> Self {
        let mut words = self.words;
        words.iter_mut().zip(other.words).for_each(|(word, other)| *word |= other);
        Self { words, beyond: self.beyond || other.beyond }
    }

    /// Bits here that are not in `other`; a bit beyond those with names counts.
    pub fn is_subset_of(&self, other: &Self) -> bool {
        !self.beyond && self.words.iter().zip(other.words).all(|(word, other)| word & !other == 0)
    }

    /// Whether no bit is set.
    pub fn is_empty(&self) -> bool {
        *self == Self::EMPTY
    }

    /// First word: hints of IO_ADVISE and other small sets that are bitmaps too.
    pub fn first_word(&self) -> u32 {
        self.words[0]
    }
}

impl Xdr for Bitmap {
    fn encode(&self, writer: &mut Writer) {
        let used = self.encoded_words();
        writer.u32(used as u32);
        // That there were bits beyond the last word is kept, though not which: one more word stands for them.
        self.words.iter().chain([&1]).take(used).for_each(|word| writer.u32(*word));
    }
    fn decode(reader: &mut Reader) -> Result<Self, XdrError> {
        let mut bitmap = Self::EMPTY;
        for index in 0..reader.length(BITMAP_WORDS_MAX)? {
            let word = reader.u32()?;
            match bitmap.words.get_mut(index) {
                Some(place) => *place = word,
                None => bitmap.beyond |= word != 0,
            }
        }
        Ok(bitmap)
    }
}

xdr_struct! {
    /// `fattr4`: which attributes, and their values one after the other, not yet looked into.
    #[derive(Default)]
    pub struct Fattr {
        /// Which.
        mask: Bitmap,
        /// Values in ascending order of attribute number.
        values: Opaque<ATTRIBUTES_MAX>,
    }
}

/// `owner` and `owner_group`: a number in digits (RFC 8881 §5.9 allows it with AUTH_SYS), or a name we do not map.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Principal {
    /// Digits.
    Id(u32),
    /// Anything else.
    Name(Opaque<OPAQUE_LIMIT>),
}

impl Xdr for Principal {
    fn encode(&self, writer: &mut Writer) {
        match self {
            Self::Name(name) => writer.opaque(name),
            Self::Id(id) => {
                let mut digits = [0_u8; 10];
                let (mut rest, mut start) = (*id, digits.len());
                loop {
                    start -= 1;
                    digits[start] = b'0' + (rest % 10) as u8;
                    rest /= 10;
                    if rest == 0 {
                        break;
                    }
                }
                writer.opaque(&digits[start..]);
            }
        }
    }

    fn decode(reader: &mut Reader) -> Result<Self, XdrError> {
        let name = Opaque::decode(reader)?;
        let digits = !name.is_empty() && name.iter().all(u8::is_ascii_digit) && (name.len() == 1 || name[0] != b'0');
        let id = std::str::from_utf8(&name).ok().filter(|_| digits).and_then(|text| text.parse().ok());
        Ok(id.map_or(Self::Name(name), Self::Id))
    }
}

/// `settime4`: how a time is set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SetTime {
    /// The server's clock.
    ServerTime,
    /// The client's.
    ClientTime(NfsTime),
}

impl Xdr for SetTime {
    fn encode(&self, writer: &mut Writer) {
        match self {
            Self::ServerTime => writer.u32(0),
            Self::ClientTime(time) => {
                writer.u32(1);
                time.encode(writer);
            }
        }
    }
    fn decode(reader: &mut Reader) -> Result<Self, XdrError> {
        match reader.u32()? {
            0 => Ok(Self::ServerTime),
            1 => NfsTime::decode(reader).map(Self::ClientTime),
            value => Err(XdrError::BadValue { name: "time_how4", value }),
        }
    }
}

macro_rules! attributes {
    ($($number:literal $attr:ident $field:ident: $type:ty),* $(,)?) => {
        /// Attribute numbers that have a meaning here.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[repr(u32)]
        #[allow(missing_docs)]
        pub enum Attr { $($attr = $number),* }

        /// Values of attributes; `None` is "not asked, not told".
        #[derive(Clone, Debug, PartialEq, Eq, Default)]
        #[allow(missing_docs)]
        pub struct Attributes { $(pub $field: Option<$type>),* }

        impl Attributes {
            /// Every attribute with a name.
            pub const NAMED: Bitmap = Bitmap::of(&[$(Attr::$attr),*]);

            /// Which values are there.
            pub fn mask(&self) -> Bitmap {
                let mut mask = Bitmap::EMPTY;
                $(if self.$field.is_some() { mask.insert(Attr::$attr); })*
                mask
            }

            fn encode_values(&self, mask: &Bitmap, writer: &mut Writer) {
                $(if mask.has(Attr::$attr) && let Some(value) = &self.$field { value.encode(writer); })*
            }

            fn decode_values(mask: &Bitmap, reader: &mut Reader) -> Result<Self, XdrError> {
                let mut attributes = Self::default();
                $(if mask.has(Attr::$attr) { attributes.$field = Some(Xdr::decode(reader)?); })*
                Ok(attributes)
            }
        }
    };
}

attributes! {
    0 SupportedAttrs supported_attrs: Bitmap,
    1 Type kind: FileType,
    2 FhExpireType fh_expire_type: u32,
    3 Change change: u64,
    4 Size size: u64,
    5 LinkSupport link_support: bool,
    6 SymlinkSupport symlink_support: bool,
    7 NamedAttr named_attr: bool,
    8 Fsid fsid: Fsid,
    9 UniqueHandles unique_handles: bool,
    10 LeaseTime lease_time: u32,
    11 RdattrError rdattr_error: Status,
    13 AclSupport acl_support: u32,
    15 CanSetTime can_set_time: bool,
    16 CaseInsensitive case_insensitive: bool,
    17 CasePreserving case_preserving: bool,
    18 ChownRestricted chown_restricted: bool,
    19 FileHandle filehandle: FileHandle,
    20 FileId fileid: u64,
    21 FilesAvail files_avail: u64,
    22 FilesFree files_free: u64,
    23 FilesTotal files_total: u64,
    26 Homogeneous homogeneous: bool,
    27 MaxFileSize max_file_size: u64,
    28 MaxLink max_link: u32,
    29 MaxName max_name: u32,
    30 MaxRead max_read: u64,
    31 MaxWrite max_write: u64,
    33 Mode mode: u32,
    34 NoTrunc no_trunc: bool,
    35 NumLinks num_links: u32,
    36 Owner owner: Principal,
    37 OwnerGroup owner_group: Principal,
    41 RawDev raw_dev: DeviceNumbers,
    42 SpaceAvail space_avail: u64,
    43 SpaceFree space_free: u64,
    44 SpaceTotal space_total: u64,
    45 SpaceUsed space_used: u64,
    47 TimeAccess time_access: NfsTime,
    48 TimeAccessSet time_access_set: SetTime,
    50 TimeCreate time_create: NfsTime,
    51 TimeDelta time_delta: NfsTime,
    52 TimeMetadata time_metadata: NfsTime,
    53 TimeModify time_modify: NfsTime,
    54 TimeModifySet time_modify_set: SetTime,
    55 MountedOnFileId mounted_on_fileid: u64,
    62 FsLayoutTypes fs_layout_types: List<u32, 16>,
    65 LayoutBlockSize layout_block_size: u32,
    74 ModeSetMasked mode_set_masked: ModeMasked,
    75 SuppattrExclcreat suppattr_exclcreat: Bitmap,
    77 CloneBlockSize clone_block_size: u32,
    79 ChangeAttrType change_attr_type: u32,
    82 XattrSupport xattr_support: bool,
}

xdr_struct! {
    /// `mode_masked4`: only bits in `mask` change.
    #[derive(Copy)]
    pub struct ModeMasked {
        /// New bits.
        mode: u32,
        /// Which bits.
        mask: u32,
    }
}

impl Attributes {
    /// The values of `mask` that are there, as they go over the wire.
    pub fn to_fattr(&self, mask: &Bitmap) -> Fattr {
        let mask = mask.intersection(&self.mask());
        let mut writer = Writer::with_capacity(256);
        self.encode_values(&mask, &mut writer);
        let values = Opaque::new(writer.finish().to_bytes()).expect("our own values are short");
        Fattr { mask, values }
    }

    /// Reads the values. A bit we have no name for makes the rest unreadable: ATTRNOTSUPP; bad bytes: BADXDR.
    pub fn from_fattr(fattr: &Fattr) -> Result<Self, Status> {
        if !fattr.mask.is_subset_of(&Self::NAMED) {
            return Err(Status::AttrNotSupp);
        }
        Self::from_values(&fattr.mask, fattr.values.as_bytes().clone()).map_err(|_| Status::BadXdr)
    }

    fn from_values(mask: &Bitmap, values: Bytes) -> Result<Self, XdrError> {
        let mut reader = Reader::new(values);
        let attributes = Self::decode_values(mask, &mut reader)?;
        reader.finish()?;
        Ok(attributes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_follow_ascending_attribute_numbers() {
        let attributes = Attributes {
            time_create: Some(NfsTime { seconds: 1, nanoseconds: 2 }),
            time_delta: Some(NfsTime { seconds: 3, nanoseconds: 4 }),
            kind: Some(FileType::Fifo),
            ..Attributes::default()
        };
        let fattr = attributes.to_fattr(&Attributes::NAMED);
        let expected = [7, 0, 1, 2, 0, 3, 4].map(u32::to_be_bytes).concat();
        assert_eq!(fattr.values.as_bytes(), &expected);
        assert_eq!(Attributes::from_fattr(&fattr).unwrap(), attributes);
    }

    #[test]
    fn numeric_owners_are_digits_and_nothing_else_is_a_number() {
        for id in [0, 7, 65_534, u32::MAX] {
            let bytes = Principal::Id(id).to_bytes();
            assert_eq!(&bytes[4..4 + id.to_string().len()], id.to_string().as_bytes());
            assert_eq!(Principal::from_bytes(bytes).unwrap(), Principal::Id(id));
        }
        for name in ["", "root", "007", "4294967296", "-1", "+1", "1 ", "root@example.org"] {
            let name = Principal::Name(Opaque::new(name).unwrap());
            assert_eq!(Principal::from_bytes(name.to_bytes()).unwrap(), name);
        }
    }

    #[test]
    fn unknown_and_overlong_lists_are_refused() {
        let beyond = [4, 0, 0, 0, 1].map(u32::to_be_bytes).concat();
        let mask = Bitmap::from_bytes(beyond.into()).unwrap();
        let fattr = Fattr { mask, values: Opaque::default() };
        assert_eq!(Attributes::from_fattr(&fattr), Err(Status::AttrNotSupp));
        let fattr = Fattr { mask: Bitmap::of(&[Attr::Size]), values: Opaque::new(vec![0; 12]).unwrap() };
        assert_eq!(Attributes::from_fattr(&fattr), Err(Status::BadXdr));
        let fattr = Fattr { mask: Bitmap::of(&[Attr::Size]), values: Opaque::new(vec![0; 4]).unwrap() };
        assert_eq!(Attributes::from_fattr(&fattr), Err(Status::BadXdr));
    }
}
