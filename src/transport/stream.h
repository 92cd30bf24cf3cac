// The bytes of a connection, in the clear or through TLS; over a socket that does not block.
#pragma once

#include <openssl/ssl.h>

#include <cstddef>
#include <memory>
#include <string>

#include "transport/tls.h"

namespace arlo::transport {

inline constexpr std::size_t kBatch = 256 << 10;  // bytes that are written at a time
inline constexpr int kReadsInTurn = 16;           // before the others have theirs

class ByteStream {
 public:
  static constexpr long kBlocked = -1;
  static constexpr long kBroken = -2;

  // Owns the socket. `tls`: null for none. `server`: whom a client asks for, by name or number; empty: this is a
  // server.
  ByteStream(int fd, const TlsContext& tls, const std::string& server = {});
  ~ByteStream();
  ByteStream(const ByteStream&) = delete;
  ByteStream& operator=(const ByteStream&) = delete;

  // Bytes that were read or written; 0 from read(): the end; or one of the above.
  [[nodiscard]] long read(char* out, std::size_t most);
  [[nodiscard]] long write(const char* bytes, std::size_t size);
  void end_writing();  // the other side is told that no more comes; it may still say something
  [[nodiscard]] int fd() const { return fd_; }
  // What it waits for before it can be read or written on: that the socket takes bytes, whichever was asked for.
  [[nodiscard]] bool wants_write() const { return wants_write_; }
  // Why it broke, where TLS is why; empty otherwise.
  [[nodiscard]] const std::string& fault() const { return fault_; }

 private:
  [[nodiscard]] long after(int result);

  const int fd_;
  std::unique_ptr<SSL, decltype(&SSL_free)> ssl_;
  bool wants_write_ = false;
  std::string fault_;
};

}  // namespace arlo::transport
