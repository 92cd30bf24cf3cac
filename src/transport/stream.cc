#include "transport/stream.h"

#include <openssl/err.h>
#include <openssl/x509.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <new>

namespace arlo::transport {
namespace {

long of_errno() { return errno == EAGAIN || errno == EINTR ? ByteStream::kBlocked : ByteStream::kBroken; }

int fitting(std::size_t size) { return static_cast<int>(std::min<std::size_t>(size, INT_MAX)); }

}  // namespace

ByteStream::ByteStream(int fd, const TlsContext& tls, const std::string& server)
    : fd_(fd), ssl_(tls == nullptr ? nullptr : SSL_new(tls.get()), &SSL_free) {
  if (tls == nullptr) return;
  if (ssl_ == nullptr || SSL_set_fd(ssl_.get(), fd) != 1) {
    close(fd);
    throw std::bad_alloc();
  }
  if (server.empty()) {
    SSL_set_accept_state(ssl_.get());
    return;
  }
  if (X509_VERIFY_PARAM_set1_ip_asc(SSL_get0_param(ssl_.get()), server.c_str()) != 1) {  // then it is a name
    SSL_set1_host(ssl_.get(), server.c_str());
    SSL_set_tlsext_host_name(ssl_.get(), server.c_str());
  }
  SSL_set_connect_state(ssl_.get());
}

ByteStream::~ByteStream() {
  if (ssl_ != nullptr && fault_.empty()) {
    ERR_clear_error();
    SSL_shutdown(ssl_.get());  // sends the notice without waiting for a reply
  }
  close(fd_);
}

long ByteStream::read(char* out, std::size_t most) {
  if (ssl_ != nullptr) {
    ERR_clear_error();
    return after(SSL_read(ssl_.get(), out, fitting(most)));
  }
  const auto count = recv(fd_, out, most, 0);
  return count >= 0 ? count : of_errno();
}

long ByteStream::write(const char* bytes, std::size_t size) {
  if (ssl_ != nullptr) {
    ERR_clear_error();
    return after(SSL_write(ssl_.get(), bytes, fitting(size)));
  }
  const auto count = send(fd_, bytes, size, MSG_NOSIGNAL);
  return count >= 0 ? count : of_errno();
}

void ByteStream::end_writing() {
  if (ssl_ != nullptr && fault_.empty()) {
    ERR_clear_error();
    SSL_shutdown(ssl_.get());
  }
  shutdown(fd_, SHUT_WR);
}

long ByteStream::after(int result) {
  wants_write_ = false;
  if (result > 0) return result;
  const int saved = errno;
  switch (SSL_get_error(ssl_.get(), result)) {
    case SSL_ERROR_WANT_READ:
      return kBlocked;
    case SSL_ERROR_WANT_WRITE:
      wants_write_ = true;
      return kBlocked;
    case SSL_ERROR_ZERO_RETURN:
      return 0;
    case SSL_ERROR_SSL: {
      const long verified = SSL_get_verify_result(ssl_.get());
      fault_ = tls_error();
      if (verified != X509_V_OK) fault_ += std::string(": ") + X509_verify_cert_error_string(verified);
      return kBroken;
    }
    default:
      errno = saved;
      if (errno != 0 && SSL_is_init_finished(ssl_.get()) == 0) fault_ = "the connection ended within the handshake";
      return kBroken;
  }
}

}  // namespace arlo::transport
