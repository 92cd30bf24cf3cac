#include "transport/stream.h"

#include <openssl/err.h>
#include <openssl/x509.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <new>
#include <stdexcept>
#include <string_view>

namespace arlo::transport {

namespace {

constexpr unsigned char kHttp2[] = {2, 'h', '2'};
constexpr unsigned char kHttp1[] = {8, 'h', 't', 't', 'p', '/', '1', '.', '1'};

[[noreturn]] void refuse(const std::string& file, const char* what) {
  throw std::invalid_argument("'" + file + "' is no " + what + ": " + tls_error());
}

// Rejects a client whose ALPN lacks our protocol; a client without ALPN is trusted to speak it.
template <const auto& ours>
int choose_protocol(SSL*, const unsigned char** out, unsigned char* out_size, const unsigned char* in, unsigned in_size,
                    void*) {
  unsigned char* chosen = nullptr;
  if (SSL_select_next_proto(&chosen, out_size, ours, sizeof ours, in, in_size) != OPENSSL_NPN_NEGOTIATED) {
    return SSL_TLSEXT_ERR_ALERT_FATAL;
  }
  *out = chosen;
  return SSL_TLSEXT_ERR_OK;
}

}  // namespace

std::string tls_error() {
  std::string text;
  while (const auto error = ERR_get_error()) {
    const char* reason = ERR_reason_error_string(error);
    if (reason == nullptr) continue;
    text += (text.empty() ? "" : "; ") + std::string(reason);
  }
  return text.empty() ? "no reason given" : text;
}

namespace {

void use_files(SSL_CTX* raw, const std::string& certificate, const std::string& key) {
  ERR_clear_error();
  if (SSL_CTX_use_certificate_chain_file(raw, certificate.c_str()) != 1) refuse(certificate, "PEM certificate chain");
  if (SSL_CTX_use_PrivateKey_file(raw, key.c_str(), SSL_FILETYPE_PEM) != 1) {
    refuse(key, "PEM private key of the certificate");
  }
}

}  // namespace

TlsContext make_tls(const TlsFiles& files, Protocol protocol) {
  TlsContext context(SSL_CTX_new(TLS_server_method()), &SSL_CTX_free);
  if (context == nullptr) throw std::invalid_argument("TLS cannot be set up: " + tls_error());
  SSL_CTX* raw = context.get();
  SSL_CTX_set_min_proto_version(raw, TLS1_2_VERSION);
  // HTTP/2 forbids renegotiation, and CBC and RSA key exchange (RFC 9113, 9.2).
  SSL_CTX_set_options(raw, SSL_OP_NO_RENEGOTIATION | SSL_OP_NO_COMPRESSION | SSL_OP_CIPHER_SERVER_PREFERENCE);
  SSL_CTX_set_cipher_list(raw, "ECDHE+AESGCM:ECDHE+CHACHA20:!aNULL");
  SSL_CTX_set_mode(raw, SSL_MODE_ENABLE_PARTIAL_WRITE | SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER | SSL_MODE_RELEASE_BUFFERS);
  const bool http2 = protocol == Protocol::kHttp2;
  SSL_CTX_set_alpn_select_cb(raw, http2 ? &choose_protocol<kHttp2> : &choose_protocol<kHttp1>, nullptr);
  // Sessions are resumed only by tickets: nothing is kept for clients that may never return.
  SSL_CTX_set_session_cache_mode(raw, SSL_SESS_CACHE_OFF);
  constexpr std::string_view kContext = "arlo";
  SSL_CTX_set_session_id_context(raw, reinterpret_cast<const unsigned char*>(kContext.data()), kContext.size());
  use_files(raw, files.certificate, files.key);
  if (!files.client_ca.empty()) {
    if (SSL_CTX_load_verify_locations(raw, files.client_ca.c_str(), nullptr) != 1) {
      refuse(files.client_ca, "PEM file of certificates");
    }
    SSL_CTX_set_client_CA_list(raw, SSL_load_client_CA_file(files.client_ca.c_str()));
    SSL_CTX_set_verify(raw, SSL_VERIFY_PEER | SSL_VERIFY_FAIL_IF_NO_PEER_CERT, nullptr);
  }
  return context;
}

TlsContext make_client_tls(const std::string& ca, const std::string& certificate, const std::string& key) {
  TlsContext context(SSL_CTX_new(TLS_client_method()), &SSL_CTX_free);
  if (context == nullptr) throw std::invalid_argument("TLS cannot be set up: " + tls_error());
  SSL_CTX* raw = context.get();
  SSL_CTX_set_min_proto_version(raw, TLS1_2_VERSION);
  SSL_CTX_set_mode(raw, SSL_MODE_ENABLE_PARTIAL_WRITE | SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER);
  SSL_CTX_set_verify(raw, SSL_VERIFY_PEER, nullptr);
  ERR_clear_error();
  if (ca.empty()) {
    SSL_CTX_set_default_verify_paths(raw);
  } else if (SSL_CTX_load_verify_locations(raw, ca.c_str(), nullptr) != 1) {
    refuse(ca, "PEM file of certificates");
  }
  if (!certificate.empty() || !key.empty()) use_files(raw, certificate, key);
  return context;
}

bool has_expired(const TlsContext& context) {
  const X509* certificate = SSL_CTX_get0_certificate(context.get());
  return certificate != nullptr && X509_cmp_current_time(X509_get0_notAfter(certificate)) < 0;
}

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
