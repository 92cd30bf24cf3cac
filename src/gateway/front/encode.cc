#include "gateway/front/encode.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "base/utf8.h"
#include "base/wire.h"
#include "gateway/desk/journey.h"
#include "kserve.h"
#include "rewrite/response.h"

namespace arlo::gateway {
namespace {

std::int64_t to_us(TimeNs ns) { return ns <= 0 ? 0 : ns / 1000; }

void add_stages(const Journey& journey, Timing& timing) {
  const auto ran = static_cast<std::size_t>(journey.last_visited) + 1;
  timing.stages.resize(std::max(timing.stages.size(), ran));
  for (std::size_t i = 0; i < ran; ++i) {
    auto& stage = timing.stages[i];
    stage.queue_us = std::max(stage.queue_us, to_us(journey.visits[i].queued_ns));
    stage.execute_us = std::max(stage.execute_us, to_us(journey.visits[i].executed_ns));
  }
  timing.escalated += journey.escalated ? 1 : 0;
  timing.degraded += flow::degraded(journey.reason) ? 1 : 0;
  timing.pruned_tokens += journey.pruned;
}

Timing timing_of(const Call& call) {
  Timing timing;
  TimeNs last = call.received_ns;
  for (const auto& row : call.rows) {
    timing.level = std::max<std::int64_t>(timing.level, row.level);
    timing.queue_us = std::max(timing.queue_us, to_us(row.queued_ns()));
    timing.execute_us = std::max(timing.execute_us, to_us(row.executed_ns()));
    if (row.journey != nullptr) add_stages(*row.journey, timing);
    timing.computed_tokens += row.padded;
    timing.demoted += row.demoted ? 1 : 0;
    timing.batch_rows = std::max<std::int64_t>(timing.batch_rows, row.batch_rows);
    last = std::max(last, row.ended_ns);
  }
  timing.total_us = to_us(last - call.received_ns);
  if (call.model->cascade != nullptr) timing.cascade_version = static_cast<std::int64_t>(call.model->cascade->version);
  return timing;
}

// The call lives until its client has read the answer.
void forget_bodies(Call& call) {
  for (auto& row : call.rows) {
    row.parsed = {};
    row.response.reset();
    row.journey.reset();
  }
}

MaybeFault encode(const Call& call, const std::vector<RowResponse>& rows, const Timing& timing, bool streamed,
                  std::uint64_t max_bytes, std::string* out) {
  ResponsePlan plan;
  if (auto fault = plan.build(*call.model, call.request, rows, timing, streamed)) return fault;

  constexpr std::uint32_t kInferResponse = 2;  // of ModelStreamInferResponse
  char prefix[16];
  wire::Writer writer(prefix);
  if (streamed) writer.header(kInferResponse, plan.size());
  const std::string_view head(prefix, static_cast<std::size_t>(writer.at() - prefix));
  if (head.size() + plan.size() > max_bytes) {
    return answer_too_large(head.size() + plan.size(), max_bytes);
  }
  out->reserve(head.size() + plan.size());
  out->append(head).resize(head.size() + plan.size());
  plan.write(out->data() + head.size());
  return {};
}

}  // namespace

MaybeFault encode_answer(Call& call, bool streamed, std::uint64_t max_bytes, std::string* out) {
  if (call.fault.code != Code::kOk) {
    Fault fault = call.fault;
    if (call.rows.size() > 1 && call.fault_row != Call::kNoRow) {
      fault.message = "row " + std::to_string(call.fault_row) + ": " + fault.message;
    }
    return fault;
  }
  std::vector<RowResponse> rows;
  rows.reserve(call.rows.size());
  for (auto& row : call.rows) rows.push_back(row.journey == nullptr ? row.parsed : answer_of(call, *row.journey, true));
  auto fault = encode(call, rows, timing_of(call), streamed, max_bytes, out);
  if (!fault) forget_bodies(call);
  return fault;
}

MaybeFault encode_partial(const Call& call, PartialAnswer& partial, std::uint64_t max_bytes, std::string* out) {
  Timing timing;
  timing.partial = partial.row;
  add_stages(partial.journey, timing);
  timing.cascade_version = static_cast<std::int64_t>(call.model->cascade->version);
  timing.total_us = to_us(partial.at_ns - call.received_ns);
  return encode(call, {answer_of(call, partial.journey, false)}, timing, true, max_bytes, out);
}

Fault answer_too_large(std::uint64_t bytes, std::uint64_t max_bytes) {
  return {Code::kResourceExhausted, "the answer is larger than max_message_bytes (" + std::to_string(bytes) + " vs. " +
                                        std::to_string(max_bytes) + "): ask for fewer rows or outputs at a time"};
}

std::string encode_stream_fault(const Fault& fault, std::string_view id) {
  inference::ModelStreamInferResponse response;
  std::string message = std::string("[") + code_name(fault.code) + "] " + fault.message;
  if (!valid_utf8(message)) message = printable(message);  // a worker's words may be anything
  response.set_error_message(std::move(message));
  if (valid_utf8(id)) response.mutable_infer_response()->set_id(std::string(id));
  if (fault.predicted_ms != 0) {
    auto& parameters = *response.mutable_infer_response()->mutable_parameters();
    parameters[kPredictedMs].set_int64_param(fault.predicted_ms);
  }
  return response.SerializeAsString();
}

void answer_fault(transport::ServerCall& call, const Fault& fault) {
  std::vector<transport::Header> trailers;
  if (fault.predicted_ms != 0) trailers.push_back({kPredictedMs, std::to_string(fault.predicted_ms)});
  call.finish(static_cast<std::uint32_t>(fault.code), fault.message, trailers);
}

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
