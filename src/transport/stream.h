// The bytes of a connection, in plain text or through TLS, over a non-blocking socket.
#pragma once

#include <openssl/ssl.h>

#include <cstddef>
#include <memory>
#include <string>

#include "transport/tls.h"

namespace arlo::transport {

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
