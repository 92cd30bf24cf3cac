// A Triton server as far as the plugin calls it: engines with threads, requests with life cycles that are checked.
//
// It speaks the C API of src/plugins/triton_api.h, so that the backend's own code runs under the sanitizers, with more
// requests, faults and reloads than a real server takes in a test. Clients' requests are objects of the test; each is
// to be answered once, before it is released once.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "plugins/triton_api.h"

struct TRITONBACKEND_Input {
  const char* name;
  TRITONSERVER_DataType datatype;
  std::vector<std::int64_t> shape;
  std::vector<std::string> buffers;
  TRITONSERVER_MemoryType memory = TRITONSERVER_MEMORY_CPU;  // with a GPU's, the buffers hold what OnDevice() makes
};

// Pinned memory of the server.
struct TRITONBACKEND_MemoryManager {
  std::atomic<std::int64_t> left{1 << 20};  // blocks that may still be had
  std::atomic<std::int64_t> had{0};
  std::atomic<std::int64_t> kept{0};  // and not given back yet
};

namespace arlo::triton::test {

struct Tensor {
  std::vector<std::int64_t> shape;
  std::string bytes;
};

}  // namespace arlo::triton::test

// A client's request.
struct TRITONBACKEND_Request {
  std::vector<TRITONBACKEND_Input> inputs;
  std::vector<std::string> outputs;
  std::uint64_t timeout_us = 0;
  bool bulk = false;
  std::uint64_t priority = 0;     // as Triton has it
  bool answer_on_device = false;  // its outputs are wanted in a GPU's memory
  std::atomic<bool> cancelled{false};

  std::atomic<int> answers{0};
  std::atomic<int> releases{0};
  std::string error;
  std::map<std::string, arlo::triton::test::Tensor> answer;
  std::map<std::string, std::int64_t> parameters;
};

namespace arlo::triton::test {

// What an engine does with its next requests.
struct Behaviour {
  std::int64_t sleep_us = 0;
  int fail_one_in = 0;       // 0: never
  std::int64_t poison = -1;  // a batch with this token id fails
  bool inline_answers = false;
  bool broken = false;  // every batch fails
  bool cut_labels = false;
  bool on_device = false;  // as an engine on a GPU: it would rather have its outputs there
  int answers = 1;  // 1: one response, which says that it is all. Else so many (-1: one), and then that it was all
};

// Ids are summed over the mask into `embedding` [rows, 1]; `hidden` is [rows, tokens, 1], the ids as floats; `label`
// [rows, 2] has the sum as text and a star for each token.
class Server {
 public:
  Server();
  ~Server();

  void Load(const std::string& model, Behaviour behaviour);
  void Unload(const std::string& model);  // what it has been given, it finishes
  void Stop();                            // as a server that ends
  void Set(const std::string& model, Behaviour behaviour);
  // Calls of ServerInferAsync that were taken, and rows in them.
  [[nodiscard]] std::uint64_t executions() const { return executions_; }
  [[nodiscard]] std::uint64_t rows() const { return rows_; }
  // Inputs that engines were given, and outputs that they were given room for, by memory type.
  struct Seen {
    std::atomic<std::uint64_t> inputs[3];
    std::atomic<std::uint64_t> outputs[3];
  };
  [[nodiscard]] Seen& seen() { return seen_; }
  [[nodiscard]] TRITONSERVER_Server* handle() { return reinterpret_cast<TRITONSERVER_Server*>(this); }

  struct Engine;
  // Of the C API.
  std::shared_ptr<Engine> Find(const std::string& model);
  bool stopping() const { return stopping_; }
  void Count(std::size_t rows) {
    ++executions_;
    rows_ += rows;
  }

 private:
  std::mutex mutex_;
  std::map<std::string, std::shared_ptr<Engine>> engines_;
  std::atomic<bool> stopping_{false};
  std::atomic<std::uint64_t> executions_{0};
  std::atomic<std::uint64_t> rows_{0};
  Seen seen_{};
};

// Made and not yet deleted, of all that the C API hands out.
std::int64_t Outstanding();
extern std::atomic<std::int64_t> outstanding;

// Ends the test: the plugin breaks a rule of the C API.
[[noreturn]] void Misuse(const char* what);

// What was counted, by family and labels: "NAME model=m engine=m_len16"; of histograms with " sum" and " count" behind.
double Counted(const std::string& series);

// A GPU's memory is the CPU's here, with other bytes in it: whoever reads it without a copy reads nonsense.
std::string OnDevice(const std::string& bytes);
bool CopyByDevice(void* to, const void* from, std::size_t bytes);  // a DeviceCopy, one side of which is the device

}  // namespace arlo::triton::test
