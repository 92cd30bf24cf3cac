// What all requests for embeddings share, in whose words they come: what is read of a body, how a model is asked, and
// the vectors made of its answer. Pure.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "gateway/front/api_task.h"
#include "gateway/front/token_rows.h"

namespace arlo::gateway {

// What is to be embedded: texts, or token ids with their special tokens, taken as they are.
struct Inputs {
  std::vector<std::string> texts;
  TokenRows ids;
  [[nodiscard]] std::size_t rows() const { return std::max(texts.size(), ids.size()); }
  [[nodiscard]] std::size_t characters() const;
};
// `empty_texts`: they are taken, too.
MaybeFault read_inputs(const nlohmann::json& body, const std::string& field, bool empty_texts, Inputs* out);

// Asks for it. UNIMPLEMENTED: the model has none.
MaybeFault ask_output(const ModelSpec& model, bool of_tokens, inference::ModelInferRequest* out,
                      const OutputSpec** spec);

// A vector for each text: of its row, or of the rows that a long one was cut into.
class Vectors : public ApiTask {
 public:
  using ApiTask::ApiTask;
  [[nodiscard]] bool fits(const ModelSpec& model) const override { return model.vector_output(false) >= 0; }
  bool meant_for(std::string_view input_type) override;
  [[nodiscard]] std::optional<std::size_t> characters() const override { return inputs_.characters(); }
  MaybeFault ask(const ModelSpec& model, std::size_t most_rows, inference::ModelInferRequest* out) override;

 protected:
  // `field`: of the inputs; null: they are read already.
  MaybeFault read_vectors(const ApiBody& from, const nlohmann::json& body, const char* field, bool empty_texts);
  // Those of the answer, `each` numbers for each text, as they were asked for.
  MaybeFault vectors(const inference::ModelInferResponse& answer, std::vector<float>* out, std::size_t* each);
  [[nodiscard]] const std::vector<std::size_t>& pieces() const { return pieces_; }  // rows of each text; empty: one

  // NOLINTBEGIN(cppcoreguidelines-non-private-member-variables-in-classes)
  Inputs inputs_;
  TextWishes wishes_;
  bool normalize_ = true;
  std::int64_t dimensions_ = 0;  // 0: all that the model has
  std::int64_t tokens_ = 0;
  // NOLINTEND(cppcoreguidelines-non-private-member-variables-in-classes)

 private:
  // Of each text the mean of its pieces, by how many tokens each has.
  void pool(std::size_t have, std::vector<float>* out) const;

  std::vector<std::size_t> pieces_;
  std::vector<double> weights_;  // of each row
};

// How the numbers of a vector are written: FP32 numbers; or their signs, eight to a number, the first one highest
// (1: above 0), as numbers from 0 to 255, or from -128 to 127.
enum class VectorKind : std::uint8_t { kFloat, kUbinary, kBinary };
// INVALID_ARGUMENT: there is no such kind here.
MaybeFault read_kind(const std::string& field, std::string_view name, VectorKind* out);
void append_vector(VectorKind kind, const float* values, std::size_t count, std::string* out);
// "..." of the vector's bytes, FP32 being little-endian.
void append_vector_base64(VectorKind kind, const float* values, std::size_t count, std::string* out);

}  // namespace arlo::gateway
