// A client's request on its way through the plugin, and the batches that its rows run in.
//
//   received -> checked -> per row: waiting -> running -> ended -> answered
//                                     ^           |
//                                     +---retry---+   the engine was unloaded, or failed the row's batch
//
// A Call ends in one of two ways: every row has its answer, or the call has a fault, which ends all of its rows at
// once; later answers of engines for them are dropped.
//
// Threads: everything here is under the host's lock unless noted otherwise.
#ifndef ARLO_PLUGINS_SCHEDULER_CALL_H_
#define ARLO_PLUGINS_SCHEDULER_CALL_H_

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/fault.h"
#include "base/time.h"
#include "dispatch/scheduler.h"
#include "plugins/scheduler/memory.h"
#include "plugins/triton_api.h"
#include "rewrite/spec.h"

namespace arlo::triton {

class Host;
struct Batch;
struct Call;

// An engine's answer for a batch: one tensor for each requested output.
struct Answer {
  struct Output {
    int spec = -1;                   // in ModelSpec::outputs
    std::vector<std::int64_t> tail;  // dims after rows (and tokens)
    std::size_t token_bytes = 0;     // of one token of a row, or of one row where it is not about tokens
    std::size_t row_bytes = 0;       // from one row to the next
    std::vector<std::size_t> ends;   // of BYTES, whose rows are of any size: where each row ends; else empty
    const char* data = nullptr;      // in one of `buffers`

    // Returns a row's part of a batch; `tokens`: those of the row where the output is about tokens, else 1.
    [[nodiscard]] std::string_view Of(std::size_t row, std::size_t tokens) const {
      if (ends.empty()) return {data + row * row_bytes, token_bytes * tokens};
      const std::size_t begin = row == 0 ? 0 : ends[row - 1];
      return {data + begin, ends[row] - begin};
    }
  };
  std::vector<Output> outputs;  // by spec
  std::vector<Memory::Block> buffers;

  [[nodiscard]] const Output* Find(int spec) const {
    for (const Output& output : outputs) {
      if (output.spec == spec) return &output;
    }
    return nullptr;
  }
};

// How an execution ended.
enum class Reply : std::uint8_t {
  kGood,
  kBadInput,  // the engine rejects one of the rows
  kError,     // the engine itself failed
  kBusy,      // it was refused: the engine's own queue is full
  kGone,      // it was refused: the engine is not loaded
  kStopping,  // it was refused: the server stops
  kDropped,   // it was not sent: no client waited any more
};

struct Row {
  enum class State : std::uint8_t { kNew, kWaiting, kRunning, kEnded };

  Call* call = nullptr;
  std::uint32_t index = 0;
  std::int32_t length = 0;
  State state = State::kNew;
  bool demoted = false;  // ran on a longer engine than it needs
  dispatch::RequestHandle handle = dispatch::kNone;
  std::int32_t attempts = 0;    // executions that it was alone in, or that were good
  std::int32_t suspect = -1;    // the engine that failed it alone, and is put aside until another one has judged it
  std::int32_t engine = -1;     // of its last execution
  std::int32_t padded = 0;      // tokens it was executed with
  std::int32_t batch_rows = 0;  // of that batch
  TimeNs started_ns = 0;
  TimeNs ended_ns = 0;
  TimeNs unfit_since_ns = 0;  // since when it waits and no engine in service is long enough; 0: one is
  Batch* batch = nullptr;     // while it runs
  std::uint32_t place = 0;    // in it
  std::shared_ptr<const Answer> answer;
};

struct Call {
  TRITONBACKEND_Request* request = nullptr;
  TRITONBACKEND_ModelInstance* instance = nullptr;
  std::vector<const char*> inputs;      // by ModelSpec::inputs, [rows, width], on the CPU; null: not sent. Constant
  std::vector<Memory::Block> gathered;  // inputs that came in pieces, or lie in a GPU's memory
  struct Given {
    const void* data = nullptr;
    Place place;
  };
  std::vector<Given> given;  // the same as the client gave it, or as it was gathered; an engine may take it from there
  std::int64_t width = 0;
  std::vector<std::int32_t> lengths;
  gateway::OutputSet outputs = 0;  // that it asks for
  bool bulk = false;
  TimeNs received_ns = 0;
  TimeNs deadline_ns = 0;  // always set
  std::vector<Row> rows;
  std::uint32_t open_rows = 0;
  Fault fault;  // why there is no answer; kOk: there is one
  // One until it is answered, and one for each batch that may read its inputs. Any thread; who lets go last frees it.
  std::atomic<std::uint32_t> holds{1};
};

// Rows that one engine executes together.
struct Batch {
  std::size_t engine = 0;
  std::int32_t tokens = 0;  // each row is padded to so many
  gateway::OutputSet outputs = 0;
  std::vector<Row*> rows;                        // null: its call has ended
  std::vector<dispatch::RequestHandle> handles;  // of the rows, those that have ended included
  std::vector<Call*> calls;                      // of the rows; held
  std::vector<std::uint32_t> indices;            // of the rows in their calls
  TimeNs started_ns = 0;
  bool cancelled = false;  // the engine was asked to cancel it

  // Its execution (execution.h).
  Host* host = nullptr;
  const Memory* memory = nullptr;
  TRITONSERVER_InferenceRequest* sent = nullptr;                // the starting thread's
  TRITONSERVER_InferenceRequest* request = nullptr;             // while it can be cancelled; under the host's lock
  bool released = false;                                        // Triton is through with it; under the host's lock
  std::shared_ptr<Answer> answer = std::make_shared<Answer>();  // the executing thread's, until the rows have it
  std::vector<Memory::Block> inputs;
  Reply reply = Reply::kError;                  // the executing thread's, as is:
  std::string why = "the engine said nothing";  // the error
  std::atomic<int> open{3};  // that still use it: the starting thread, and the two callbacks of Triton
};

}  // namespace arlo::triton

#endif  // ARLO_PLUGINS_SCHEDULER_CALL_H_
