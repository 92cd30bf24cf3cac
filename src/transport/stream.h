// The bytes of a connection, in plain text or through TLS, over a non-blocking socket.
#pragma once

#include <openssl/ssl.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

namespace arlo::transport {

// TLS 1.2 and 1.3 by OpenSSL: for a server, with one protocol by ALPN and optional client certificates; for a client
// that verifies its server.

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

inline constexpr std::size_t kBatch = 256 << 10;  // bytes written at a time
inline constexpr int kReadsInTurn = 16;           // before the others have their turns

class ByteStream {
 public:
  static constexpr long kBlocked = -1;
  static constexpr long kBroken = -2;

  // Owns the socket. `tls`: null for none. `server`: the server that a client asks for, by name or number; empty: this
  // is a server.
  ByteStream(int fd, const TlsContext& tls, const std::string& server = {});
  ~ByteStream();
  ByteStream(const ByteStream&) = delete;
  ByteStream& operator=(const ByteStream&) = delete;

  // Returns bytes read or written; 0 from read(): the end; or one of the above.
  [[nodiscard]] long read(char* out, std::size_t most);
  [[nodiscard]] long write(const char* bytes, std::size_t size);
  void end_writing();  // tells the other side that no more data comes; it may still send
  [[nodiscard]] int fd() const { return fd_; }
  // Whether the socket must become writable before the next read or write.
  [[nodiscard]] bool wants_write() const { return wants_write_; }
  // The TLS error that broke it; empty otherwise.
  [[nodiscard]] const std::string& fault() const { return fault_; }

 private:
  [[nodiscard]] long after(int result);

  const int fd_;
  std::unique_ptr<SSL, decltype(&SSL_free)> ssl_;
  bool wants_write_ = false;
  std::string fault_;
};

}  // namespace arlo::transport
