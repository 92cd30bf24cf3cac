// The wire format of requests and answers, for those who read and write them.
#pragma once

#include <cstdint>

namespace arlo::gateway {

// Field numbers of inference.ModelInferRequest and the messages in it.
enum RequestField : std::uint8_t {
  kName = 1,
  kVersion = 2,
  kId = 3,
  kParameters = 4,
  kInputs = 5,
  kOutputs = 6,
  kRaw = 7
};
enum TensorField : std::uint8_t { kTensorName = 1, kDatatype = 2, kShape = 3, kTensorParameters = 4, kContents = 5 };
enum ParameterField : std::uint8_t { kBool = 1, kInt64 = 2, kString = 3, kDouble = 4, kUint64 = 5 };
enum ContentsField : std::uint8_t {
  kIntContents = 2,
  kInt64Contents = 3,
  kUintContents = 4,
  kUint64Contents = 5,
  kFp32Contents = 6,
  kFp64Contents = 7
};
// Of inference.ModelInferResponse; its tensors and parameters are as above.
namespace answer {
enum ResponseField : std::uint8_t { kName = 1, kVersion = 2, kId = 3, kParameters = 4, kOutputs = 5, kRaw = 6 };
}  // namespace answer

}  // namespace arlo::gateway
