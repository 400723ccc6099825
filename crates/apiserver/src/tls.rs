//! The server's certificate, signed by a certificate authority of its own, and the kubeconfig that trusts it.

use std::net::IpAddr;
use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use rcgen::{BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, KeyPair, KeyUsagePurpose};
use rustls::ServerConfig;
use rustls::pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer};

use crate::token::Token;

/// Names that every certificate holds: the machine's loopback, and the Service of the API.
const NAMES: [&str; 5] =
    ["localhost", "kubernetes", "kubernetes.default", "kubernetes.default.svc", "kubernetes.default.svc.cluster.local"];

/// Why there is no certificate.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// It could not be made.
    #[error("cannot make the API's certificate")]
    Certificate(#[from] rcgen::Error),
    /// It can't be served.
    #[error("cannot use the API's certificate")]
    Configuration(#[from] rustls::Error),
}

/// A server certificate with its key, and the authority's certificate for clients.
#[derive(Clone)]
pub struct TlsIdentity {
    ca_pem: String,
    pub(crate) config: Arc<ServerConfig>,
}

impl TlsIdentity {
    /// A new authority and a certificate for these addresses and names, the loopback and `localhost`. The authority's
    /// key is forgotten at once: nobody can sign another one.
    ///
    /// # Errors
    /// When a name is none, or the key can't be made.
    pub fn generate(addresses: &[IpAddr], names: &[&str]) -> Result<TlsIdentity, TlsError> {
        let mut ca = CertificateParams::default();
        ca.distinguished_name.push(DnType::CommonName, "signpost");
        ca.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
        ca.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::DigitalSignature];
        let ca_key = KeyPair::generate()?;
        let ca_certificate = ca.self_signed(&ca_key)?;

        let mut subjects: Vec<String> = NAMES.iter().chain(names).map(|&name| name.to_owned()).collect();
        let loopback = ["127.0.0.1", "::1"].map(str::to_owned);
        subjects.extend(loopback.into_iter().chain(addresses.iter().map(IpAddr::to_string)));
        subjects.sort();
        subjects.dedup();
        let mut server = CertificateParams::new(subjects)?;
        server.distinguished_name.push(DnType::CommonName, "signpost-apiserver");
        server.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        server.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        let key = KeyPair::generate()?;
        let certificate = server.signed_by(&key, &rcgen::Issuer::from_params(&ca, &ca_key))?;

        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let private = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(key.serialize_der()));
        let mut config = ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()?
            .with_no_client_auth()
            .with_single_cert(vec![certificate.der().clone()], private)?;
        config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        Ok(TlsIdentity { ca_pem: ca_certificate.pem(), config: Arc::new(config) })
    }

    /// The authority's certificate, for clients.
    pub fn ca_pem(&self) -> &str {
        &self.ca_pem
    }
}

/// A kubeconfig that reaches a server by its URL (`https://127.0.0.1:6443`). It holds the token: keep it private
/// ([`crate::write_private`]).
pub fn kubeconfig(server_url: &str, identity: &TlsIdentity, token: &Token) -> String {
    let quoted = |text: &str| serde_json::Value::from(text).to_string();
    format!(
        "apiVersion: v1\nkind: Config\ncurrent-context: signpost\n\
         clusters:\n- name: signpost\n  cluster:\n    server: {}\n    certificate-authority-data: {}\n\
         users:\n- name: signpost\n  user:\n    token: {}\n\
         contexts:\n- name: signpost\n  context:\n    cluster: signpost\n    user: signpost\n    namespace: default\n",
        quoted(server_url),
        STANDARD.encode(identity.ca_pem()),
        quoted(token.secret()),
    )
}
