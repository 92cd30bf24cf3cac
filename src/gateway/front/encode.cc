#include "gateway/front/encode.h"

#include <grpc/slice.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "base/utf8.h"
#include "base/wire.h"
#include "kserve.h"
#include "rewrite/response.h"

namespace arlo::gateway {
namespace {

constexpr std::size_t kOnePiece = 32 * 1024;  // up to here one copy is cheaper than a list of slices
constexpr std::size_t kByReference = 4 * 1024;

std::int64_t to_us(TimeNs ns) { return ns <= 0 ? 0 : ns / 1000; }

Timing timing_of(const Call& call) {
  Timing timing;
  TimeNs last = call.received_ns;
  for (const auto& row : call.rows) {
    timing.level = std::max<std::int64_t>(timing.level, row.level);
    timing.queue_us = std::max(timing.queue_us, to_us(row.started_ns - call.received_ns));
    timing.execute_us = std::max(timing.execute_us, to_us(row.ended_ns - row.started_ns));
    timing.computed_tokens += row.padded;
    timing.demoted += row.demoted ? 1 : 0;
    timing.batch_rows = std::max<std::int64_t>(timing.batch_rows, row.batch_rows);
    last = std::max(last, row.ended_ns);
  }
  timing.total_us = to_us(last - call.received_ns);
  return timing;
}

// Tensors are handed on by reference to the bytes that the worker sent, unless it sent answers to others with them: a
// client that is slow to read would keep those, too.
grpc::ByteBuffer by_reference(const ResponsePlan& plan, const Call& call, std::string_view prefix) {
  std::vector<grpc::Slice> slices;
  std::string text(prefix);
  auto flush = [&] {
    if (text.empty()) return;
    slices.emplace_back(text.data(), text.size());
    text.clear();
  };
  for (const auto& part : plan.parts()) {
    if (part.kind == ResponsePlan::Part::kText) {
      text.append(plan.text(), part.offset, part.size);
    } else if (part.kind == ResponsePlan::Part::kZeros) {
      text.append(part.size, '\0');
    } else if (part.size < kByReference) {
      text.append(part.data, part.size);
    } else if (call.rows[part.row].batch_rows > 1) {
      flush();
      slices.emplace_back(part.data, part.size);
    } else {
      flush();
      grpc_slice whole = call.rows[part.row].response.c_slice();
      const auto offset =
          static_cast<std::size_t>(part.data - reinterpret_cast<const char*>(GRPC_SLICE_START_PTR(whole)));
      slices.emplace_back(grpc_slice_sub(whole, offset, offset + part.size), grpc::Slice::STEAL_REF);
      grpc_slice_unref(whole);
    }
  }
  flush();
  return {slices.data(), slices.size()};
}

// The call lives until its client has read the answer.
void forget_bodies(Call& call) {
  for (auto& row : call.rows) {
    row.parsed = {};
    row.response = grpc::Slice();
  }
}

}  // namespace

MaybeFault encode_answer(Call& call, bool streamed, std::uint64_t max_bytes, grpc::ByteBuffer* out) {
  if (call.fault.code != Code::kOk) {
    Fault fault = call.fault;
    if (call.rows.size() > 1 && call.fault_row != Call::kNoRow) {
      fault.message = "row " + std::to_string(call.fault_row) + ": " + fault.message;
    }
    return fault;
  }
  std::vector<RowResponse> rows;
  rows.reserve(call.rows.size());
  for (const auto& row : call.rows) rows.push_back(row.parsed);
  ResponsePlan plan;
  if (auto fault = plan.build(*call.model, call.request, rows, timing_of(call), streamed)) return fault;

  constexpr std::uint32_t kInferResponse = 2;  // of ModelStreamInferResponse
  char prefix[16];
  wire::Writer writer(prefix);
  if (streamed) writer.header(kInferResponse, plan.size());
  const std::string_view head(prefix, static_cast<std::size_t>(writer.at() - prefix));
  // Left to gRPC it would end the stream, with all that is under way there.
  if (head.size() + plan.size() > max_bytes) {
    return answer_too_large(head.size() + plan.size(), max_bytes);
  }
  if (plan.size() > kOnePiece) {
    *out = by_reference(plan, call, head);
    forget_bodies(call);
    return {};
  }
  grpc_slice memory = grpc_slice_malloc(head.size() + plan.size());
  char* at = reinterpret_cast<char*>(GRPC_SLICE_START_PTR(memory));
  std::copy(head.begin(), head.end(), at);
  plan.write(at + head.size());
  const grpc::Slice slice(memory, grpc::Slice::STEAL_REF);
  *out = grpc::ByteBuffer(&slice, 1);
  forget_bodies(call);
  return {};
}

Fault answer_too_large(std::uint64_t bytes, std::uint64_t max_bytes) {
  return {Code::kResourceExhausted, "the answer is larger than max_message_bytes (" + std::to_string(bytes) + " vs. " +
                                        std::to_string(max_bytes) + "): ask for fewer rows or outputs at a time"};
}

grpc::ByteBuffer encode_stream_fault(const Fault& fault, std::string_view id) {
  inference::ModelStreamInferResponse response;
  std::string message = std::string("[") + code_name(fault.code) + "] " + fault.message;
  if (!valid_utf8(message)) message = printable(message);  // a worker's words may be anything
  response.set_error_message(std::move(message));
  if (valid_utf8(id)) response.mutable_infer_response()->set_id(std::string(id));
  if (fault.predicted_ms != 0) {
    auto& parameters = *response.mutable_infer_response()->mutable_parameters();
    parameters[kPredictedMs].set_int64_param(fault.predicted_ms);
  }
  const grpc::Slice slice(response.SerializeAsString());
  return {&slice, 1};
}

grpc::Status to_status(const Fault& fault) { return {static_cast<grpc::StatusCode>(fault.code), fault.message}; }

const char* code_name(Code code) {
  switch (code) {
    case Code::kOk:
      return "OK";
    case Code::kCancelled:
      return "CANCELLED";
    case Code::kInvalidArgument:
      return "INVALID_ARGUMENT";
    case Code::kDeadlineExceeded:
      return "DEADLINE_EXCEEDED";
    case Code::kNotFound:
      return "NOT_FOUND";
    case Code::kResourceExhausted:
      return "RESOURCE_EXHAUSTED";
    case Code::kFailedPrecondition:
      return "FAILED_PRECONDITION";
    case Code::kUnimplemented:
      return "UNIMPLEMENTED";
    case Code::kInternal:
      return "INTERNAL";
    case Code::kUnavailable:
      return "UNAVAILABLE";
    case Code::kUnauthenticated:
      return "UNAUTHENTICATED";
    case Code::kUnknown:
      break;
  }
  return "UNKNOWN";
}

}  // namespace arlo::gateway
