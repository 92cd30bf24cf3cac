// TLS 1.2 and 1.3 by OpenSSL: for a server, with one protocol by ALPN and optional client certificates; for a client
// that verifies its server.
#pragma once

#include <openssl/ssl.h>

#include <cstdint>
#include <memory>
#include <string>

namespace arlo::transport {

struct TlsFiles {
  std::string certificate;  // PEM chain
  std::string key;          // PEM
  std::string client_ca;    // PEM; empty: clients need no certificate
};

using TlsContext = std::shared_ptr<SSL_CTX>;

enum class Protocol : std::uint8_t { kHttp2, kHttp1 };

// Throws std::invalid_argument that names the file and its error.
TlsContext make_tls(const TlsFiles& files, Protocol protocol = Protocol::kHttp2);

// Makes a client's context. `ca`: a PEM file of authorities; empty: the system's. Certificate and key of the client,
// both or neither. Throws std::invalid_argument as make_tls.
TlsContext make_client_tls(const std::string& ca, const std::string& certificate, const std::string& key);

// Whether the certificate has expired.
bool has_expired(const TlsContext& context);

// The reason for the last failed operation of this thread, for people.
std::string tls_error();

}  // namespace arlo::transport
