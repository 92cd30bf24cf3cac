#include "plugins/scheduler/execution.h"

#include <algorithm>
#include <cstring>
#include <string_view>
#include <utility>

#include "plugins/scheduler/client.h"
#include "plugins/triton_errors.h"
#include "rewrite/spec.h"

namespace arlo::triton {
namespace {

TRITONSERVER_Error* Allocate(TRITONSERVER_ResponseAllocator* /*allocator*/, const char* /*name*/, size_t bytes,
                             TRITONSERVER_MemoryType wanted, int64_t /*wanted_id*/, void* userp, void** buffer,
                             void** buffer_userp, TRITONSERVER_MemoryType* memory, int64_t* memory_id) {
  const Batch& batch = *static_cast<Batch*>(userp);
  auto& buffers = batch.answer->buffers;
  // Rows are taken out of it on the CPU. An engine that would rather have its GPU's memory copies from there.
  buffers.push_back(wanted == TRITONSERVER_MEMORY_CPU ? Memory::Heap(bytes) : batch.memory->Pinned(bytes));
  *buffer = buffers.back().get();
  *buffer_userp = nullptr;
  *memory = Memory::PlaceOf(buffers.back()).type;
  *memory_id = 0;
  return nullptr;
}

// The memory is the batch's.
TRITONSERVER_Error* Release(TRITONSERVER_ResponseAllocator* /*allocator*/, void* /*buffer*/, void* /*buffer_userp*/,
                            size_t /*bytes*/, TRITONSERVER_MemoryType /*memory*/, int64_t /*memory_id*/) {
  return nullptr;
}

// The rows, one after the other, are all of one call, and need no padding.
bool AsTheyCame(const Batch& batch) {
  const Call& call = *batch.calls.front();
  if (call.width != batch.tokens || call.lengths.size() != batch.calls.size()) return false;
  for (std::size_t i = 0; i < batch.calls.size(); ++i) {
    if (batch.calls[i] != &call || batch.indices[i] != i || call.lengths[i] != batch.tokens) return false;
  }
  return true;
}

Call::Given Gather(const gateway::InputSpec& spec, std::size_t input, Batch& batch) {
  const auto tokens = static_cast<std::size_t>(batch.tokens);
  batch.inputs.push_back(batch.memory->Pinned(batch.calls.size() * tokens * spec.item));
  char* to = batch.inputs.back().get();
  for (std::size_t i = 0; i < batch.calls.size(); ++i, to += tokens * spec.item) {
    const Call& call = *batch.calls[i];
    const char* from = call.inputs[input];
    if (from != nullptr) from += batch.indices[i] * static_cast<std::size_t>(call.width) * spec.item;
    gateway::write_row(spec, from, static_cast<std::size_t>(call.lengths[batch.indices[i]]), tokens, to);
  }
  return {batch.inputs.back().get(), Memory::PlaceOf(batch.inputs.back())};
}

// Where each row of a BYTES output ends; an element is 4 bytes of length, little-endian, and so many bytes. False:
// there are not as many elements as the shape says.
bool FindEnds(std::int64_t rows, std::string_view raw, Answer::Output& output) {
  std::int64_t elements = 1;  // of a row
  for (const std::int64_t dim : output.tail) {
    if (__builtin_mul_overflow(elements, std::max<std::int64_t>(dim, 0), &elements)) return false;
  }
  if (elements > static_cast<std::int64_t>(raw.size())) return false;
  std::size_t at = 0;
  for (std::int64_t row = 0; row < rows; ++row) {
    for (std::int64_t i = 0; i < elements; ++i) {
      std::uint32_t size = 0;
      if (raw.size() - at < sizeof(size)) return false;
      std::memcpy(&size, raw.data() + at, sizeof(size));
      at += sizeof(size);
      if (raw.size() - at < size) return false;
      at += size;
    }
    output.ends.push_back(at);
  }
  return at == raw.size();
}

Reply Unusable(Batch& batch, const std::string& what) {
  batch.why = "its answer is unusable: " + what;
  return Reply::kError;
}

}  // namespace

TRITONSERVER_Error* NewAllocator(TRITONSERVER_ResponseAllocator** allocator) {
  return TRITONSERVER_ResponseAllocatorNew(allocator, Allocate, Release, nullptr);
}

TRITONSERVER_Error* MakeRequest(const LogicalConfig& config, TRITONSERVER_Server* server, Batch& batch,
                                TRITONSERVER_InferenceRequest** request) {
  const auto& model = config.model;
  ARLO_RETURN_IF_ERROR(
      TRITONSERVER_InferenceRequestNew(request, server, config.engines[batch.engine].info.name.c_str(), -1));
  const bool as_they_came = AsTheyCame(batch);
  const std::int64_t shape[] = {static_cast<std::int64_t>(batch.calls.size()), batch.tokens};
  for (std::size_t i = 0; i < model.inputs.size(); ++i) {
    const auto& spec = model.inputs[i];
    const char* const name = spec.name.c_str();
    Call::Given given = as_they_came ? batch.calls.front()->given[i] : Call::Given{};
    if (given.data == nullptr) given = Gather(spec, i, batch);
    const std::size_t bytes = batch.calls.size() * static_cast<std::size_t>(batch.tokens) * spec.item;
    ARLO_RETURN_IF_ERROR(TRITONSERVER_InferenceRequestAddInput(*request, name, DatatypeOf(spec.datatype), shape, 2));
    ARLO_RETURN_IF_ERROR(TRITONSERVER_InferenceRequestAppendInputData(*request, name, given.data, bytes,
                                                                      given.place.type, given.place.id));
  }
  for (std::size_t i = 0; i < model.outputs.size(); ++i) {
    if ((batch.outputs >> i & 1) == 0) continue;
    ARLO_RETURN_IF_ERROR(TRITONSERVER_InferenceRequestAddRequestedOutput(*request, model.outputs[i].name.c_str()));
  }
  return nullptr;
}

Reply ReadResponse(const LogicalConfig& config, TRITONSERVER_InferenceResponse* response, Batch& batch) {
  if (TRITONSERVER_Error* error = TRITONSERVER_InferenceResponseError(response)) {
    batch.why = TRITONSERVER_ErrorMessage(error);
    const Reply reply = ReplyOf(error, false);
    TRITONSERVER_ErrorDelete(error);  // Triton makes a new one each time, contrary to its documentation
    return reply;
  }
  if (batch.reply == Reply::kGood) return Unusable(batch, "it sent more than one");
  const auto& model = config.model;
  std::uint32_t count = 0;
  LogAndDelete(TRITONSERVER_InferenceResponseOutputCount(response, &count));
  const auto rows = static_cast<std::int64_t>(batch.calls.size());
  auto& outputs = batch.answer->outputs;
  gateway::OutputSet found = 0;
  for (std::uint32_t i = 0; i < count; ++i) {
    const char* name = nullptr;
    TRITONSERVER_DataType datatype = TRITONSERVER_TYPE_INVALID;
    const std::int64_t* shape = nullptr;
    std::uint64_t dims = 0;
    const void* base = nullptr;
    size_t bytes = 0;
    TRITONSERVER_MemoryType memory = TRITONSERVER_MEMORY_CPU;
    std::int64_t memory_id = 0;
    void* userp = nullptr;
    if (TRITONSERVER_Error* error = TRITONSERVER_InferenceResponseOutput(response, i, &name, &datatype, &shape, &dims,
                                                                         &base, &bytes, &memory, &memory_id, &userp)) {
      const std::string what = TRITONSERVER_ErrorMessage(error);
      TRITONSERVER_ErrorDelete(error);
      return Unusable(batch, what);
    }
    const int index = model.find_output(name);
    if (index < 0 || (batch.outputs >> index & 1) == 0) continue;
    const auto& spec = model.outputs[static_cast<std::size_t>(index)];
    const std::uint64_t leading = spec.token_level ? 2 : 1;
    if (datatype != DatatypeOf(spec.datatype) || dims < leading || shape[0] != rows ||
        (spec.token_level && shape[1] != batch.tokens)) {
      return Unusable(batch, "output '" + spec.name + "' has not the datatype or the shape that arlo.json says");
    }
    Answer::Output output;
    output.spec = index;
    output.tail.assign(shape + leading, shape + dims);
    output.token_bytes = spec.item;
    for (const std::int64_t dim : output.tail)
      output.token_bytes *= static_cast<std::size_t>(std::max<std::int64_t>(dim, 0));
    output.row_bytes = output.token_bytes * (spec.token_level ? static_cast<std::size_t>(batch.tokens) : 1);
    output.data = static_cast<const char*>(base);
    const bool fits = spec.item > 0 ? output.row_bytes * static_cast<std::size_t>(rows) == bytes
                                    : FindEnds(rows, {output.data, bytes}, output);
    if (!fits) return Unusable(batch, "output '" + spec.name + "' has another size than its shape");
    outputs.push_back(std::move(output));
    found |= gateway::OutputSet{1} << index;
  }
  if (found != batch.outputs) return Unusable(batch, "an output is missing");
  return Reply::kGood;
}

Reply ReplyOf(TRITONSERVER_Error* error, bool refused) {
  const std::string_view what = TRITONSERVER_ErrorMessage(error);
  const auto code = TRITONSERVER_ErrorCode(error);
  const auto says = [what](const char* words) { return what.find(words) != std::string_view::npos; };
  if (code == TRITONSERVER_ERROR_INVALID_ARG) return Reply::kBadInput;
  if (says("Server is stopping") || says("Server not ready")) return Reply::kStopping;
  if (says("maximum queue size") || says("Request timeout expired")) return Reply::kBusy;
  if (refused && (code == TRITONSERVER_ERROR_NOT_FOUND || code == TRITONSERVER_ERROR_UNAVAILABLE)) return Reply::kGone;
  return Reply::kError;
}

}  // namespace arlo::triton
