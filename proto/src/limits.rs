//! Every bound a peer meets, and why it is what it is.

/// Largest READ or WRITE payload: what Linux asks for at most.
pub const IO_MAX: u32 = 1 << 20;

/// Largest record: one full payload and room for the rest of a COMPOUND around it.
pub const RECORD_MAX: u32 = IO_MAX + (64 << 10);

/// Fragments of one record: clients send one; a slow-drip of tiny ones must end.
pub const FRAGMENTS_MAX: u32 = 64;

/// Operations in one COMPOUND that the server runs; the issue of vectored clients is to fill this.
pub const OPERATIONS_MAX: u32 = 256;

/// RFC 5531 §8.2: the body of a credential or verifier.
pub const AUTH_BODY_MAX: usize = 400;

/// RFC 5531 §8.2 and appendix A: groups in AUTH_SYS.
pub const AUTH_SYS_GROUPS_MAX: usize = 16;

/// RFC 8881 §3.3: `NFS4_OPAQUE_LIMIT`.
pub const OPAQUE_LIMIT: usize = 1024;

/// RFC 8881 §3.3: `NFS4_FHSIZE`.
pub const FILEHANDLE_MAX: usize = 128;

/// RFC 1813 §2.4: `NFS3_FHSIZE`.
pub const NFS3_FILEHANDLE_MAX: usize = 64;

/// RFC 1813 §5.1.2: `MNTPATHLEN`.
pub const MOUNT_PATH_MAX: usize = 1024;

/// RFC 1813 §5.1.2: `MNTNAMLEN`.
pub const MOUNT_NAME_MAX: usize = 255;

/// A component as it may arrive. Longer than any file system's so that 256 bytes is NAMETOOLONG, not garbage.
pub const COMPONENT_MAX: usize = 4096;

/// The target of a symbolic link, as it may arrive (Linux stops at 4,095).
pub const LINK_TEXT_MAX: usize = 8192;

/// An attribute list, as it may arrive.
pub const ATTRIBUTES_MAX: usize = 64 << 10;

/// Words in a bitmap as it may arrive; only the first [`BITMAP_WORDS`] mean anything to us.
pub const BITMAP_WORDS_MAX: usize = 64;

/// Words of a bitmap that we keep: attributes 0 to 95.
pub const BITMAP_WORDS: usize = 3;

/// Stateids in one TEST_STATEID.
pub const TEST_STATEIDS_MAX: usize = 1024;

/// An extended attribute's value: Linux's `XATTR_SIZE_MAX`.
pub const XATTR_VALUE_MAX: usize = 64 << 10;

/// Bytes of an opaque structure that we carry but do not look into (layouts, GSS).
pub const BLOB_MAX: usize = 64 << 10;

/// Elements of a list nobody has reason to make long (security flavours, source servers).
pub const SHORT_LIST_MAX: usize = 64;

/// Elements of a list bounded in practice by the record it is in (directory entries, layouts, xattr names).
pub const LONG_LIST_MAX: usize = 65_536;

/// A payload as it may arrive: whatever fits the record.
pub const RECORD_PAYLOAD_MAX: usize = RECORD_MAX as usize;
