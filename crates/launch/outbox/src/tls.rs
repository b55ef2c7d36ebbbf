//! TLS with `rustls`, limited to the parts that a client without its own certificate needs.

use std::io;
use std::path::Path;
use std::sync::Arc;

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::{WebPkiServerVerifier, verify_server_name};
use rustls::crypto::ring::cipher_suite::{
    TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256, TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384,
    TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256, TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384, TLS13_AES_128_GCM_SHA256,
    TLS13_AES_256_GCM_SHA384,
};
use rustls::crypto::ring::kx_group::{SECP256R1, SECP384R1, X25519};
use rustls::crypto::{CryptoProvider, GetRandomFailed, KeyProvider, SecureRandom, WebPkiSupportedAlgorithms};
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::server::ParsedCertificate;
use rustls::sign::SigningKey;
use rustls::{CertificateError, ClientConfig, DigitallySignedStruct, RootCertStore, SignatureScheme};
use webpki::ring as signatures;

/// Creates a client configuration that trusts these authorities, or the system's if `None`.
///
/// # Errors
/// [`rustls::Error`] if no TLS version is supported.
pub(crate) fn config(certificates: Option<&[CertificateDer<'static>]>) -> Result<Arc<ClientConfig>, rustls::Error> {
    let mut roots = RootCertStore::empty();
    match certificates {
        Some(certificates) => _ = roots.add_parsable_certificates(certificates.iter().cloned()),
        None => trust_the_system(&mut roots),
    }
    let provider = CryptoProvider {
        // Every server with TLS 1.3 supports AES (RFC 8446, 9.1), and so do all known servers with
        // TLS 1.2.
        cipher_suites: vec![
            TLS13_AES_256_GCM_SHA384,
            TLS13_AES_128_GCM_SHA256,
            TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384,
            TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256,
            TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384,
            TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256,
        ],
        kx_groups: vec![X25519, SECP256R1, SECP384R1],
        signature_verification_algorithms: SIGNATURES,
        secure_random: &System,
        key_provider: &System,
    };
    let provider = Arc::new(provider);
    let chains = WebPkiServerVerifier::builder_with_provider(Arc::new(roots), Arc::clone(&provider)).build();
    let chains = chains.map_err(|error| rustls::Error::General(error.to_string()))?;
    let verifier = Verifier { chains, trusted: certificates.map(<[_]>::to_vec) };
    let config = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions()?;
    let mut config = config.dangerous().with_custom_certificate_verifier(Arc::new(verifier)).with_no_client_auth();
    // Messages are too rare for session resumption to be useful.
    config.resumption = rustls::client::Resumption::disabled();
    Ok(Arc::new(config))
}

/// Verifies a server's certificate as `webpki` does, and accepts a self-signed one with `CA:TRUE`,
/// the default of `openssl req -x509`, that is itself among the trusted ones, as OpenSSL does.
#[derive(Debug)]
struct Verifier {
    chains: Arc<WebPkiServerVerifier>,
    /// The trusted certificates; `None` for the system's.
    trusted: Option<Vec<CertificateDer<'static>>>,
}

impl Verifier {
    fn trusts(&self, certificate: &CertificateDer<'_>) -> bool {
        match &self.trusted {
            Some(trusted) => trusted.contains(certificate),
            None => rustls_native_certs::load_native_certs().certs.contains(certificate),
        }
    }
}

impl ServerCertVerifier for Verifier {
    fn verify_server_cert(
        &self,
        certificate: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        name: &ServerName<'_>,
        ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        match self.chains.verify_server_cert(certificate, intermediates, name, ocsp_response, now) {
            // `webpki` has already checked the time for which the certificate is valid.
            Err(error) if is_authority(&error) && self.trusts(certificate) => {
                verify_server_name(&ParsedCertificate::try_from(certificate)?, name)?;
                Ok(ServerCertVerified::assertion())
            }
            verified => verified,
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.chains.verify_tls12_signature(message, certificate, signature)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.chains.verify_tls13_signature(message, certificate, signature)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.chains.supported_verify_schemes()
    }
}

/// Whether the server's own certificate was rejected because it is an authority's.
fn is_authority(error: &rustls::Error) -> bool {
    let rustls::Error::InvalidCertificate(CertificateError::Other(other)) = error else { return false };
    other.0.downcast_ref() == Some(&webpki::Error::CaUsedAsEndEntity)
}

/// The signature algorithms that `rustls` accepts with *ring*, in the same order.
const SIGNATURES: WebPkiSupportedAlgorithms = WebPkiSupportedAlgorithms {
    all: &[
        signatures::ECDSA_P256_SHA256,
        signatures::ECDSA_P256_SHA384,
        signatures::ECDSA_P384_SHA256,
        signatures::ECDSA_P384_SHA384,
        signatures::ED25519,
        signatures::RSA_PSS_2048_8192_SHA256_LEGACY_KEY,
        signatures::RSA_PSS_2048_8192_SHA384_LEGACY_KEY,
        signatures::RSA_PSS_2048_8192_SHA512_LEGACY_KEY,
        signatures::RSA_PKCS1_2048_8192_SHA256,
        signatures::RSA_PKCS1_2048_8192_SHA384,
        signatures::RSA_PKCS1_2048_8192_SHA512,
        signatures::RSA_PKCS1_2048_8192_SHA256_ABSENT_PARAMS,
        signatures::RSA_PKCS1_2048_8192_SHA384_ABSENT_PARAMS,
        signatures::RSA_PKCS1_2048_8192_SHA512_ABSENT_PARAMS,
    ],
    mapping: &[
        // In TLS 1.2 the scheme doesn't determine the curve.
        (SignatureScheme::ECDSA_NISTP384_SHA384, &[signatures::ECDSA_P384_SHA384, signatures::ECDSA_P256_SHA384]),
        (SignatureScheme::ECDSA_NISTP256_SHA256, &[signatures::ECDSA_P256_SHA256, signatures::ECDSA_P384_SHA256]),
        (SignatureScheme::ED25519, &[signatures::ED25519]),
        (SignatureScheme::RSA_PSS_SHA512, &[signatures::RSA_PSS_2048_8192_SHA512_LEGACY_KEY]),
        (SignatureScheme::RSA_PSS_SHA384, &[signatures::RSA_PSS_2048_8192_SHA384_LEGACY_KEY]),
        (SignatureScheme::RSA_PSS_SHA256, &[signatures::RSA_PSS_2048_8192_SHA256_LEGACY_KEY]),
        (SignatureScheme::RSA_PKCS1_SHA512, &[signatures::RSA_PKCS1_2048_8192_SHA512]),
        (SignatureScheme::RSA_PKCS1_SHA384, &[signatures::RSA_PKCS1_2048_8192_SHA384]),
        (SignatureScheme::RSA_PKCS1_SHA256, &[signatures::RSA_PKCS1_2048_8192_SHA256]),
    ],
};

/// The system's random numbers, and no private keys, because the client has no certificate.
#[derive(Debug)]
struct System;

impl SecureRandom for System {
    fn fill(&self, bytes: &mut [u8]) -> Result<(), GetRandomFailed> {
        getrandom::fill(bytes).map_err(|_| GetRandomFailed)
    }
}

impl KeyProvider for System {
    fn load_private_key(&self, _: PrivateKeyDer<'static>) -> Result<Arc<dyn SigningKey>, rustls::Error> {
        Err(rustls::Error::General("no client certificates".to_owned()))
    }
}

/// Adds the authorities that the system trusts, or Mozilla's list.
fn trust_the_system(roots: &mut RootCertStore) {
    let found = rustls_native_certs::load_native_certs();
    roots.add_parsable_certificates(found.certs);
    if roots.is_empty() {
        found.errors.iter().for_each(|error| log::info!("coroner: can't read the system's certificates: {error}"));
        roots.extend(webpki_roots::TLS_SERVER_ROOTS.iter().cloned());
    }
}

/// Reads a file that contains at least one certificate.
///
/// # Errors
/// An I/O error if the file can't be read or contains no certificate.
pub(crate) fn read_certificates(path: &Path) -> io::Result<Vec<CertificateDer<'static>>> {
    let bytes = std::fs::read(path)?;
    let certificates: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&bytes).collect();
    let certificates = certificates.map_err(io::Error::other)?;
    if certificates.is_empty() {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "the file contains no certificate"));
    }
    Ok(certificates)
}
