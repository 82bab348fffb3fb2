//! Who a node is: the cluster's own authority, a node's certificate, and what both ends of a connection prove with them.
//!
//! Owns: making certificates, TLS settings, the check that a peer is the node it says it is. Never does: keep keys on
//! disk, decide who may join.
//!
//! Invariants:
//! * Nobody without a certificate of this cluster's authority gets as far as a first frame, and no other authority counts.
//! * A certificate names one node of one cluster; a node id that it does not name is not believed.
//! * Only TLS 1.3, and every connection proves everything anew: no session is resumed.

use std::{
    fmt,
    sync::Arc,
    time::{Duration, SystemTime},
};

use forebay_proto::cluster::{ClusterId, NodeId};
use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose, PKCS_ECDSA_P256_SHA256, PublicKeyData, SignatureAlgorithm,
};
use rustls::{
    ClientConfig, DigitallySignedStruct, RootCertStore, ServerConfig, SignatureScheme,
    client::{
        Resumption,
        danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier},
        verify_server_name,
    },
    crypto::{CryptoProvider, ring, verify_tls12_signature, verify_tls13_signature},
    pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer, ServerName, UnixTime},
    server::{NoServerSessionStorage, ParsedCertificate, VerifierBuilderError, WebPkiClientVerifier},
    version::TLS13,
};

/// What this protocol is called when TLS begins, so that its certificates cannot be used to be talked into another.
const ALPN: &[u8] = b"forebay-peer";
/// What gRPC speaks.
const HTTP2: &[u8] = b"h2";
/// How long the authority lives: longer than any cluster.
const AUTHORITY_LIFE: Duration = Duration::from_secs(30 * 365 * 86_400);
/// How long a node's certificate lives. It is made anew whenever the node joins.
const NODE_LIFE: Duration = Duration::from_secs(5 * 365 * 86_400);
/// Certificates are valid from this long ago: clocks of machines that just booted differ.
const CLOCK_DIFFERENCE: Duration = Duration::from_secs(86_400);
/// Bytes of a public key: an uncompressed point of P-256.
const PUBLIC_KEY_BYTES: usize = 65;

/// Why there is no identity.
#[derive(Debug, thiserror::Error)]
pub enum IdentityError {
    /// A key or certificate cannot be made or read.
    #[error("certificate: {0}")]
    Certificate(#[from] rcgen::Error),
    /// TLS takes no such key or certificate.
    #[error("TLS: {0}")]
    Tls(#[from] rustls::Error),
    /// The authority's certificate is none.
    #[error("the cluster's authority: {0}")]
    Authority(#[from] VerifierBuilderError),
    /// The certificate names another node or cluster.
    #[error("the certificate is not that of node {}", .0.0)]
    OtherNode(NodeId),
    /// What a joining node sent is no public key.
    #[error("not a public key")]
    PublicKey,
}

/// The cluster's authority. Made once, when the cluster begins; whoever has it can let nodes in.
pub struct ClusterAuthority {
    cluster: ClusterId,
    key: KeyPair,
    certificate: CertificateDer<'static>,
}

impl ClusterAuthority {
    /// A new one.
    ///
    /// # Errors
    /// There is no randomness to be had.
    pub fn create(cluster: ClusterId, now: SystemTime) -> Result<Self, IdentityError> {
        let key = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256)?;
        let mut params = authority_params(cluster);
        set_life(&mut params, now, AUTHORITY_LIFE);
        let certificate = params.self_signed(&key)?.der().clone();
        Ok(Self { cluster, key, certificate })
    }

    /// One that was made before, from its key and certificate in DER.
    ///
    /// # Errors
    /// The key is none.
    pub fn restore(cluster: ClusterId, key: &[u8], certificate: &[u8]) -> Result<Self, IdentityError> {
        Ok(Self { cluster, key: KeyPair::try_from(key)?, certificate: certificate.to_vec().into() })
    }

    /// The certificate in DER: what every node needs to know its peers.
    pub fn certificate(&self) -> &[u8] {
        &self.certificate
    }

    /// The key in DER (PKCS#8). A secret.
    pub fn secret_key(&self) -> Vec<u8> {
        self.key.serialize_der()
    }

    /// A certificate, in DER, for the node with this [`NodeKey::public_key`].
    ///
    /// # Errors
    /// It is no public key.
    pub fn issue(&self, node: NodeId, public_key: &[u8], now: SystemTime) -> Result<Vec<u8>, IdentityError> {
        let public_key = PublicKey::new(public_key)?;
        let mut params = CertificateParams::new([node_name(self.cluster, node)])?;
        params.distinguished_name = name(&format!("forebay node {}", node.0));
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
        set_life(&mut params, now, NODE_LIFE);
        let authority = authority_params(self.cluster);
        let issuer = Issuer::from_params(&authority, &self.key);
        Ok(params.signed_by(&public_key, &issuer)?.der().to_vec())
    }
}

impl fmt::Debug for ClusterAuthority {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("ClusterAuthority").field("cluster", &self.cluster).finish_non_exhaustive()
    }
}

fn authority_params(cluster: ClusterId) -> CertificateParams {
    let mut params = CertificateParams::default();
    params.distinguished_name = name(&format!("forebay cluster {}", cluster_name(cluster)));
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    params
}

fn name(common: &str) -> DistinguishedName {
    let mut name = DistinguishedName::new();
    name.push(DnType::CommonName, common);
    name
}

fn set_life(params: &mut CertificateParams, now: SystemTime, life: Duration) {
    params.not_before = (now - CLOCK_DIFFERENCE).into();
    params.not_after = (now + life).into();
}

fn cluster_name(cluster: ClusterId) -> String {
    format!("{:032x}", u128::from_be_bytes(cluster.0))
}

/// What a node is called in its certificate. The domain is reserved for private use: nobody else can have it.
fn node_name(cluster: ClusterId, node: NodeId) -> String {
    format!("node-{}.{}.forebay.internal", node.0, cluster_name(cluster))
}

fn server_name(cluster: ClusterId, node: NodeId) -> ServerName<'static> {
    ServerName::try_from(node_name(cluster, node)).expect("labels of digits and letters, shorter than 64")
}

/// A public key that somebody sent.
struct PublicKey(Vec<u8>);

impl PublicKey {
    fn new(bytes: &[u8]) -> Result<Self, IdentityError> {
        const UNCOMPRESSED: u8 = 4;
        let is_point = bytes.len() == PUBLIC_KEY_BYTES && bytes[0] == UNCOMPRESSED;
        if is_point { Ok(Self(bytes.to_vec())) } else { Err(IdentityError::PublicKey) }
    }
}

impl PublicKeyData for PublicKey {
    fn der_bytes(&self) -> &[u8] {
        &self.0
    }
    fn algorithm(&self) -> &'static SignatureAlgorithm {
        &PKCS_ECDSA_P256_SHA256
    }
}

/// A node's own key. It never leaves the node.
pub struct NodeKey(KeyPair);

impl fmt::Debug for NodeKey {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("NodeKey").finish_non_exhaustive()
    }
}

impl NodeKey {
    /// A new one.
    ///
    /// # Errors
    /// There is no randomness to be had.
    pub fn create() -> Result<Self, IdentityError> {
        Ok(Self(KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256)?))
    }

    /// One that was made before, in DER (PKCS#8).
    ///
    /// # Errors
    /// It is none.
    pub fn restore(key: &[u8]) -> Result<Self, IdentityError> {
        Ok(Self(KeyPair::try_from(key)?))
    }

    /// What the authority makes a certificate for.
    pub fn public_key(&self) -> &[u8] {
        self.0.public_key_raw()
    }

    /// In DER. A secret.
    pub fn secret_key(&self) -> Vec<u8> {
        self.0.serialize_der()
    }
}

/// What a connection is protected by.
#[derive(Clone)]
pub(super) enum Protection {
    /// Both ends prove who they are.
    Mutual {
        client: Arc<ClientConfig>,
        server: Arc<ServerConfig>,
        /// As `server`, for those too who are no nodes yet.
        door: Arc<ServerConfig>,
    },
    /// Nobody proves anything.
    None,
}

/// Who this node is, and how it proves it.
#[derive(Clone)]
pub struct PeerIdentity {
    /// The cluster.
    pub cluster: ClusterId,
    /// This node.
    pub node: NodeId,
    pub(super) protection: Protection,
}

impl fmt::Debug for PeerIdentity {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { cluster, node, .. } = self;
        formatter.debug_struct("PeerIdentity").field("cluster", cluster).field("node", node).finish_non_exhaustive()
    }
}

impl PeerIdentity {
    /// A node with its certificate and its authority's, in DER.
    ///
    /// # Errors
    /// They do not belong together, or to this node.
    pub fn mutual(
        cluster: ClusterId,
        node: NodeId,
        authority: &[u8],
        certificate: &[u8],
        key: &NodeKey,
    ) -> Result<Self, IdentityError> {
        let provider = Arc::new(provider());
        let mut roots = RootCertStore::empty();
        roots.add(authority.to_vec().into())?;
        let roots = Arc::new(roots);
        let chain = vec![CertificateDer::from(certificate.to_vec())];
        if !is_node(&chain, cluster, node) {
            return Err(IdentityError::OtherNode(node));
        }
        let secret = || PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(key.secret_key()));

        let verifier = WebPkiClientVerifier::builder_with_provider(roots.clone(), provider.clone());
        let lenient = verifier.clone().allow_unauthenticated().build()?;
        let verifier = verifier.build()?;
        let mut door = ServerConfig::builder_with_provider(provider.clone())
            .with_protocol_versions(&[&TLS13])?
            .with_client_cert_verifier(lenient)
            .with_single_cert(chain.clone(), secret())?;
        door.alpn_protocols = vec![HTTP2.to_vec()];
        door.session_storage = Arc::new(NoServerSessionStorage {});
        door.send_tls13_tickets = 0;
        let mut server = ServerConfig::builder_with_provider(provider.clone())
            .with_protocol_versions(&[&TLS13])?
            .with_client_cert_verifier(verifier)
            .with_single_cert(chain.clone(), secret())?;
        server.alpn_protocols = vec![ALPN.to_vec()];
        server.session_storage = Arc::new(NoServerSessionStorage {});
        server.send_tls13_tickets = 0;

        let mut client = ClientConfig::builder_with_provider(provider)
            .with_protocol_versions(&[&TLS13])?
            .with_root_certificates(roots)
            .with_client_auth_cert(chain, secret())?;
        client.alpn_protocols = vec![ALPN.to_vec()];
        client.resumption = Resumption::disabled();
        let protection =
            Protection::Mutual { client: Arc::new(client), server: Arc::new(server), door: Arc::new(door) };
        Ok(Self { cluster, node, protection })
    }

    /// A node that proves nothing and believes what peers say, for measurements and for networks that see to it themselves.
    pub fn open(cluster: ClusterId, node: NodeId) -> Self {
        Self { cluster, node, protection: Protection::None }
    }

    /// How the node connects to others for what is not chunks, and how they connect to it: HTTP/2 over the same mutual TLS, where who has no
    /// certificate is let as far as the door, to ask to be let in.
    ///
    /// # Errors
    /// The identity proves nothing.
    pub fn control(&self) -> Result<(Arc<ClientConfig>, Arc<ServerConfig>), IdentityError> {
        let Protection::Mutual { client, door, .. } = &self.protection else {
            return Err(IdentityError::OtherNode(self.node));
        };
        let mut client = ClientConfig::clone(client);
        client.alpn_protocols = vec![HTTP2.to_vec()];
        Ok((Arc::new(client), door.clone()))
    }

    /// Whether the certificates of a connection are those of `node`.
    pub fn is_proved(&self, certificates: &[CertificateDer<'static>], node: NodeId) -> bool {
        self.believes(Some(certificates), node)
    }

    /// The name that `node` has in its certificate.
    pub fn server_name(&self, node: NodeId) -> ServerName<'static> {
        self.name_of(node)
    }

    pub(super) fn name_of(&self, node: NodeId) -> ServerName<'static> {
        server_name(self.cluster, node)
    }

    /// Whether a peer with these certificates may be `node`.
    pub(super) fn believes(&self, certificates: Option<&[CertificateDer<'_>]>, node: NodeId) -> bool {
        match self.protection {
            Protection::Mutual { .. } => certificates.is_some_and(|chain| is_node(chain, self.cluster, node)),
            Protection::None => true,
        }
    }
}

fn is_node(chain: &[CertificateDer<'_>], cluster: ClusterId, node: NodeId) -> bool {
    let Some(certificate) = chain.first() else { return false };
    let Ok(parsed) = ParsedCertificate::try_from(certificate) else { return false };
    verify_server_name(&parsed, &server_name(cluster, node)).is_ok()
}

/// TLS of a node that has no certificate yet: whoever connects to it learns nothing and believes nothing but the proof that it knows the
/// cluster's token.
///
/// # Errors
/// There is no randomness to be had.
pub fn unproved_server() -> Result<Arc<ServerConfig>, IdentityError> {
    let key = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256)?;
    let certificate = CertificateParams::new([UNPROVED.to_owned()])?.self_signed(&key)?;
    let secret = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(key.serialize_der()));
    let mut server = ServerConfig::builder_with_provider(Arc::new(provider()))
        .with_protocol_versions(&[&TLS13])?
        .with_no_client_auth()
        .with_single_cert(vec![certificate.der().clone()], secret)?;
    server.alpn_protocols = vec![HTTP2.to_vec()];
    server.send_tls13_tickets = 0;
    Ok(Arc::new(server))
}

/// TLS towards a node of which nothing is known: it proves by the cluster's token, bound to the very connection, who it is.
///
/// # Errors
/// There is no randomness to be had.
pub fn unproved_client() -> Result<Arc<ClientConfig>, IdentityError> {
    let provider = Arc::new(provider());
    let mut client = ClientConfig::builder_with_provider(provider.clone())
        .with_protocol_versions(&[&TLS13])?
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(AnyCertificate(provider)))
        .with_no_client_auth();
    client.alpn_protocols = vec![HTTP2.to_vec()];
    client.resumption = Resumption::disabled();
    Ok(Arc::new(client))
}

/// What a node is called that has no certificate.
pub const UNPROVED: &str = "node.forebay.internal";

/// Takes every certificate; that the other end has its key is checked all the same.
#[derive(Debug)]
struct AnyCertificate(Arc<CryptoProvider>);

impl ServerCertVerifier for AnyCertificate {
    fn verify_server_cert(
        &self,
        _certificate: &CertificateDer<'_>,
        _chain: &[CertificateDer<'_>],
        _name: &ServerName<'_>,
        _ocsp: &[u8],
        _now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls12_signature(message, certificate, signature, &self.0.signature_verification_algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls13_signature(message, certificate, signature, &self.0.signature_verification_algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}

/// AES first: every machine worth a cache has instructions for it, and 128 bits cost less than 256.
fn provider() -> CryptoProvider {
    let mut provider = ring::default_provider();
    provider.cipher_suites = vec![
        ring::cipher_suite::TLS13_AES_128_GCM_SHA256,
        ring::cipher_suite::TLS13_CHACHA20_POLY1305_SHA256,
        ring::cipher_suite::TLS13_AES_256_GCM_SHA384,
    ];
    provider
}

#[cfg(test)]
mod tests {
    use super::*;

    const CLUSTER: ClusterId = ClusterId([7; 16]);

    #[test]
    fn a_certificate_is_that_of_one_node_of_one_cluster() {
        let authority = ClusterAuthority::create(CLUSTER, SystemTime::now()).unwrap();
        let key = NodeKey::create().unwrap();
        let certificate = authority.issue(NodeId(3), key.public_key(), SystemTime::now()).unwrap();
        let identity =
            |cluster, node| PeerIdentity::mutual(cluster, NodeId(node), authority.certificate(), &certificate, &key);
        assert!(identity(CLUSTER, 3).is_ok());
        assert!(matches!(identity(CLUSTER, 4), Err(IdentityError::OtherNode(_))));
        assert!(matches!(identity(ClusterId([8; 16]), 3), Err(IdentityError::OtherNode(_))));
        let other = NodeKey::create().unwrap();
        let wrong_key = PeerIdentity::mutual(CLUSTER, NodeId(3), authority.certificate(), &certificate, &other);
        assert!(matches!(wrong_key, Err(IdentityError::Tls(_))));
        let mine = identity(CLUSTER, 3).unwrap();
        assert!(!mine.believes(None, NodeId(3)));
        assert!(!mine.believes(Some(&[CertificateDer::from(vec![1, 2, 3])]), NodeId(3)));
        let issued = [CertificateDer::from(authority.issue(NodeId(33), key.public_key(), SystemTime::now()).unwrap())];
        assert!(mine.believes(Some(&issued), NodeId(33)) && !mine.believes(Some(&issued), NodeId(3)));
    }

    #[test]
    fn what_was_kept_is_the_same_again() {
        let authority = ClusterAuthority::create(CLUSTER, SystemTime::now()).unwrap();
        let again = ClusterAuthority::restore(CLUSTER, &authority.secret_key(), authority.certificate()).unwrap();
        let key = NodeKey::restore(&NodeKey::create().unwrap().secret_key()).unwrap();
        let certificate = again.issue(NodeId(u64::MAX), key.public_key(), SystemTime::now()).unwrap();
        assert!(PeerIdentity::mutual(CLUSTER, NodeId(u64::MAX), authority.certificate(), &certificate, &key).is_ok());
        assert!(ClusterAuthority::restore(CLUSTER, b"nonsense", authority.certificate()).is_err());
        assert!(NodeKey::restore(&[]).is_err());
    }

    #[test]
    fn what_is_no_public_key_is_refused() {
        let authority = ClusterAuthority::create(CLUSTER, SystemTime::now()).unwrap();
        for bytes in [&[][..], &[4; 64], &[3; 65], &[4; 66]] {
            let refused = authority.issue(NodeId(1), bytes, SystemTime::now());
            assert!(matches!(refused, Err(IdentityError::PublicKey)));
        }
        assert!(PeerIdentity::mutual(CLUSTER, NodeId(1), b"none", b"none", &NodeKey::create().unwrap()).is_err());
    }

    #[test]
    fn nobody_reads_a_secret_in_a_log() {
        let authority = ClusterAuthority::create(CLUSTER, SystemTime::now()).unwrap();
        let told = format!("{authority:?} {:?}", NodeKey::create().unwrap());
        assert!(told.len() < 200, "{told}");
    }
}
