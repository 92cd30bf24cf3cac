// Traces of requests: samples them, and sends their spans to a collector (OTLP over HTTP, as JSON).
//
// Each lane records into a bounded buffer, which a thread sends. A lane never waits: if the buffer is full or being
// taken, the trace is lost and counted, as are traces that no collector accepts.
#pragma once

#include <arlo/v1/config.pb.h>

#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "gateway/desk/call.h"
#include "gateway/front/usage.h"
#include "gateway/trace/post.h"

namespace arlo::gateway {

// A span with its attributes.
struct Span {
  std::string trace_id;
  std::uint64_t id = 0;
  std::uint64_t parent = 0;  // 0: none
  std::string name;
  bool serves = false;                     // it is the request's span
  std::uint64_t start_ns = 0, end_ns = 0;  // since 1970
  std::vector<std::pair<const char*, std::int64_t>> numbers;
  std::vector<std::pair<const char*, std::string>> texts;
  std::string fault;  // why it has no answer
};

// The body of a POST to /v1/traces.
std::string otlp_json(const std::vector<Span>& spans);

class Tracer {
 public:
  // Throws std::invalid_argument if the collector's address is invalid.
  Tracer(const v1::TracingConfig& config, PortUsage& usage);
  ~Tracer();  // tries once more to send the buffer
  Tracer(const Tracer&) = delete;
  Tracer& operator=(const Tracer&) = delete;

  // Begins the trace of a request with this header, which may be empty; null: it is not traced.
  [[nodiscard]] std::unique_ptr<Trace> begin(std::string_view traceparent, TimeNs now);
  // Records a call that has ended, with its rows or with this fault.
  void ended(const Call& call, const Fault& fault, TimeNs now);

 private:
  void run();

  const double share_;
  const std::size_t most_;  // spans
  const HttpTarget target_;
  PortUsage& usage_;
  std::mutex mutex_;
  std::condition_variable wake_;
  std::vector<Span> waiting_;  // under the mutex, like the next field
  bool ending_ = false;
  std::thread thread_;  // if there is a collector
};

}  // namespace arlo::gateway
