// Writes the seeds and the dictionary of fuzz_server_session: seeds_server_session FOLDER DICTIONARY. What nghttp2's
// client says in some conversations; always the same ones.
#include <nghttp2/nghttp2.h>

#include <cstdio>
#include <exception>
#include <filesystem>
#include <fstream>
#include <stdexcept>
#include <string>
#include <vector>

#include "transport/grpc_message.h"
#include "transport/http2.h"

namespace {

using namespace arlo::transport;  // NOLINT(google-build-using-namespace): a program of one file

void write(const std::filesystem::path& path, const std::string& bytes) {
  std::ofstream out(path, std::ios::binary | std::ios::trunc);
  out << bytes;
  if (!out.flush()) throw std::runtime_error("cannot write " + path.string());
}

ssize_t read_body(nghttp2_session*, std::int32_t, std::uint8_t* out, std::size_t most, std::uint32_t* flags,
                  nghttp2_data_source* source, void*) {
  const auto& body = *static_cast<const std::string*>(source->ptr);
  const std::size_t some = body.copy(reinterpret_cast<char*>(out), most);
  *flags = NGHTTP2_DATA_FLAG_EOF;
  return static_cast<ssize_t>(some);
}

// `calls` with bodies of some messages; every third is reset.
std::string conversation(int calls, std::size_t bytes) {
  nghttp2_session_callbacks* callbacks = nullptr;
  nghttp2_session* session = nullptr;
  if (nghttp2_session_callbacks_new(&callbacks) != 0) throw std::runtime_error("no memory");
  nghttp2_session_client_new(&session, callbacks, nullptr);
  nghttp2_session_callbacks_del(callbacks);
  nghttp2_submit_settings(session, NGHTTP2_FLAG_NONE, nullptr, 0);
  std::vector<std::string> bodies;
  bodies.reserve(static_cast<std::size_t>(calls));
  std::string out;
  for (int i = 0; i < calls; ++i) {
    bodies.push_back(std::string(text_of(prefix_of(bytes))) + std::string(bytes, 'm') +
                     std::string(text_of(prefix_of(0))));
    const std::string path = "/inference.GRPCInferenceService/" + std::string(static_cast<std::size_t>(i % 12), 'M');
    const std::vector<nghttp2_nv> fields{field(":method", "POST"),     field(":scheme", "http"),
                                         field(":path", path),         field(":authority", "a"),
                                         field("te", "trailers"),      field("content-type", "application/grpc"),
                                         field("grpc-timeout", "20m"), field("user-agent", "seed")};
    nghttp2_data_provider provider{};
    provider.source.ptr = &bodies.back();
    provider.read_callback = &read_body;
    const auto stream = nghttp2_submit_request(session, nullptr, fields.data(), fields.size(), &provider, nullptr);
    append_output(session, &out, 1 << 16);
    if (i % 3 == 2) nghttp2_submit_rst_stream(session, NGHTTP2_FLAG_NONE, stream, NGHTTP2_CANCEL);
  }
  nghttp2_submit_ping(session, NGHTTP2_FLAG_NONE, nullptr);
  append_output(session, &out, 1 << 16);
  nghttp2_session_del(session);
  return out;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 3) return 2;
  try {
    const std::filesystem::path folder(argv[1]);
    std::filesystem::create_directories(folder);
    int number = 0;
    for (const int calls : {0, 1, 3, 7}) {
      for (const std::size_t bytes : {0U, 5U, 300U, 5000U}) {
        for (const char piece : {'\0', '\x07', '\x40'}) {
          write(folder / std::to_string(number++), std::string(1, piece) + conversation(calls, bytes));
        }
      }
    }
    write(argv[2],
          "\"PRI * HTTP/2.0\\x0d\\x0a\\x0d\\x0aSM\\x0d\\x0a\\x0d\\x0a\"\n\"\\x00\\x00\\x04\\x03\\x00\"\n"
          "\"\\x00\\x00\\x00\\x04\\x01\"\n\"grpc-timeout\"\n\"grpc-encoding\"\n\"gzip\"\n\"deflate\"\n");
  } catch (const std::exception& error) {
    std::fprintf(stderr, "seeds_server_session: %s\n", error.what());
    return 1;
  }
  return 0;
}
