// Writes the seeds and the dictionary of fuzz_client_session: seeds_client_session FOLDER DICTIONARY. What our own
// server answers to the calls that the fuzz target makes; always the same.
#include <cstdio>
#include <exception>
#include <filesystem>
#include <fstream>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>

#include "transport/client_session.h"
#include "transport/server_session.h"

namespace {

using namespace arlo::transport;  // NOLINT(google-build-using-namespace): a program of one file

void write(const std::filesystem::path& path, const std::string& bytes) {
  std::ofstream out(path, std::ios::binary | std::ios::trunc);
  out << bytes;
  if (!out.flush()) throw std::runtime_error("cannot write " + path.string());
}

class Answers final : public Service {
 public:
  explicit Answers(std::size_t bytes) : bytes_(bytes) {}
  std::unique_ptr<CallHandler> begin(ServerCall& call) override {
    return std::make_unique<Handler>(call, bytes_, number_++);
  }

 private:
  class Handler final : public CallHandler {
   public:
    Handler(ServerCall& call, std::size_t bytes, int number) : call_(call), bytes_(bytes), number_(number) {}
    void message(std::string) override {}
    void half_closed() override {
      if (number_ % 3 != 2) call_.send(std::string(bytes_, 'a'));
      call_.finish(number_ % 3 == 2 ? 14 : 0, number_ % 3 == 2 ? "not now" : "", {});
    }
    void closed(bool) override {}

   private:
    ServerCall& call_;
    const std::size_t bytes_;
    const int number_;
  };
  const std::size_t bytes_;
  int number_ = 0;
};

std::string conversation(int calls, std::size_t bytes) {
  Answers answers(bytes);
  Memory memory;
  ServerSession server(answers, {}, memory, "seed", [] {});
  ClientSession client("worker:1", {}, [] {});
  for (int i = 0; i < calls; ++i) client.call("/method", std::string(100, 'r'), [](Answer) {});
  std::string said;
  for (bool more = true; more;) {
    std::string asked;
    std::string out;
    client.output(&asked, 1 << 20);
    server.feed(asked, 1);
    server.output(&out, 1 << 20);
    client.feed(out);
    more = !asked.empty() || !out.empty();
    said += out;
  }
  return said;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 3) return 2;
  try {
    const std::filesystem::path folder(argv[1]);
    std::filesystem::create_directories(folder);
    int number = 0;
    for (const int calls : {0, 1, 5}) {
      for (const std::size_t bytes : {0U, 5U, 5000U}) {
        for (const char piece : {'\0', '\x07', '\x40'}) {
          write(folder / std::to_string(number++), std::string(1, piece) + conversation(calls, bytes));
        }
      }
    }
    write(argv[2], "\"\\x00\\x00\\x04\\x03\\x00\"\n\"\\x00\\x00\\x00\\x04\\x01\"\n\"grpc-status\"\n\"grpc-message\"\n");
  } catch (const std::exception& error) {
    std::fprintf(stderr, "seeds_client_session: %s\n", error.what());
    return 1;
  }
  return 0;
}
