// Where tensors lie: on the CPU, in pinned memory of the server, on a GPU. No GPU is needed: a device's memory is here
// the CPU's with other bytes in it (plugin_triton.h), so what is read without a copy is read wrong.
#include "plugin_fixture.h"

namespace arlo::triton {
namespace {

// As a client sends it from CUDA shared memory, and wants the answer there.
std::unique_ptr<TRITONBACKEND_Request> OnDevice(const std::vector<std::vector<std::int64_t>>& rows,
                                                bool pieces = false) {
  auto request = Request(rows, pieces);
  for (auto& input : request->inputs) {
    input.memory = TRITONSERVER_MEMORY_GPU;
    for (std::string& buffer : input.buffers) buffer = test::OnDevice(buffer);
  }
  request->answer_on_device = true;
  return request;
}

// Its tensors back on the CPU, for ExpectAnswer().
void ToHost(TRITONBACKEND_Request& request) {
  for (auto& input : request.inputs) {
    for (std::string& buffer : input.buffers) buffer = test::OnDevice(buffer);
  }
  for (auto& [name, tensor] : request.answer) tensor.bytes = test::OnDevice(tensor.bytes);
}

class PluginMemory : public PluginHost {
 protected:
  void Answered(TRITONBACKEND_Request& request) {
    Send(request);
    Await(request);
    ASSERT_EQ(request.error, "");
    if (request.answer_on_device) ToHost(request);
    ExpectAnswer(request);
  }
};

TEST_F(PluginMemory, AGpuTensorThatIsABatchIsReadWhereItLies) {
  LoadBoth({.on_device = true});
  Start();
  auto exact = OnDevice({Ids(16), Ids(16, 100)});
  Answered(*exact);
  EXPECT_EQ(server_.seen().inputs[TRITONSERVER_MEMORY_GPU], 2U);  // ids and mask
  EXPECT_EQ(server_.seen().inputs[TRITONSERVER_MEMORY_CPU], 0U);
  EXPECT_EQ(server_.seen().outputs[TRITONSERVER_MEMORY_CPU_PINNED], 2U);
}

TEST_F(PluginMemory, RowsOfGpuTensorsAreGatheredInPinnedMemory) {
  LoadBoth({.on_device = true});
  Start();
  for (const bool pieces : {false, true}) {
    auto mixed = OnDevice({Ids(3), Ids(64), Ids(17)}, pieces);
    Answered(*mixed);
  }
  EXPECT_EQ(server_.seen().inputs[TRITONSERVER_MEMORY_GPU], 0U);
  EXPECT_EQ(server_.seen().inputs[TRITONSERVER_MEMORY_CPU], 0U);
  EXPECT_GE(server_.seen().inputs[TRITONSERVER_MEMORY_CPU_PINNED], 4U);
}

TEST_F(PluginMemory, AnEngineOnTheCpuGetsPlainMemoryForItsOutputs) {
  LoadBoth();
  Start();
  auto request = Request({Ids(3), Ids(40)});
  Answered(*request);
  EXPECT_EQ(server_.seen().outputs[TRITONSERVER_MEMORY_CPU_PINNED], 0U);
  EXPECT_GE(server_.seen().outputs[TRITONSERVER_MEMORY_CPU], 2U);
}

TEST_F(PluginMemory, WithoutPinnedMemoryThereIsTheHeap) {
  LoadBoth({.on_device = true});
  Start();
  pinned_.left = 1;  // used up in the middle of a batch
  for (int i = 0; i < 4; ++i) {
    auto request = OnDevice({Ids(3), Ids(64), Ids(17)}, i % 2 == 1);
    Answered(*request);
  }
  EXPECT_GE(server_.seen().inputs[TRITONSERVER_MEMORY_CPU], 1U);
  pinned_.left = 0;
  const Memory none(&pinned_, nullptr);
  pinned_.left = 10;
  EXPECT_EQ(Memory::PlaceOf(none.Pinned(8)).type, TRITONSERVER_MEMORY_CPU) << "a server without GPUs is asked once";
}

TEST_F(PluginMemory, AGpuThatCannotBeReachedIsSaid) {
  memory_ = std::make_unique<Memory>(&pinned_, nullptr);
  LoadBoth();
  Start();
  auto from = OnDevice({Ids(4)});
  auto to = Request({Ids(4)});
  to->answer_on_device = true;
  for (TRITONBACKEND_Request* request : {from.get(), to.get()}) {
    Send(*request);
    Await(*request);
    EXPECT_NE(request->error.find("no CUDA runtime"), std::string::npos) << request->error;
  }
  auto fine = Request({Ids(4)});
  Answered(*fine);
}

TEST_F(PluginMemory, ACopyThatFailsIsTheRequestsError) {
  memory_ = std::make_unique<Memory>(&pinned_, [](void*, const void*, std::size_t) { return false; });
  LoadBoth();
  Start();
  auto from = OnDevice({Ids(4)});
  Send(*from);
  Await(*from);
  EXPECT_NE(from->error.find("a copy from or to GPU memory failed"), std::string::npos) << from->error;
}

}  // namespace
}  // namespace arlo::triton
