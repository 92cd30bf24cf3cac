// TLS of a server, by OpenSSL: 1.2 and 1.3, one protocol by ALPN, client certificates where they are asked for.
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

// Throws std::invalid_argument that names the file and says what is wrong with it.
TlsContext make_tls(const TlsFiles& files, Protocol protocol = Protocol::kHttp2);

// The certificate is past its date.
bool has_expired(const TlsContext& context);

// Why the last operation of this thread failed, for people.
std::string tls_error();

}  // namespace arlo::transport
