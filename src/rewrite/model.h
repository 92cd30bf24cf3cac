// A deployment as the data path reads it: checked once, then immutable and shared.
#pragma once

#include <arlo/v1/admin.pb.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/fault.h"
#include "rewrite/spec.h"
#include "text/job.h"
#include "text/tokenizer.h"

namespace arlo::gateway {

// How a model's text becomes token ids.
struct TextSpec {
  text::Tokenizer tokenizer;                         // of no use where it is made elsewhere
  std::string no_text;                               // why it takes none; empty: it does
  std::shared_ptr<const text::Elsewhere> elsewhere;  // a tokenizer for the helpers; null: the one above is used
};

// Enables helpers for tokenizers that are not known here. Called before a deployment is read.
void text_has_helpers();

// Makes the tokens of texts, or of pairs where there are `seconds` (as many). If they are made elsewhere, it fills
// `job` and returns UNAVAILABLE; call it again with the same arguments when the job is done.
MaybeFault encode_texts(const TextSpec& spec, const std::vector<std::string_view>& texts,
                        const std::vector<std::string_view>& seconds, const text::Limits& limits, text::Job* job,
                        std::vector<text::Encoding>* out);
// Of a job that has something to ask, or is done.
MaybeFault wait_for(text::Job* job, const TextSpec& spec);

// Checks a deployment as a whole; the fault names the field and the reason.
MaybeFault check_deployment(const v1::Deployment& deployment);

// Returns its models, the first one first.
std::vector<const v1::Model*> models_of(const v1::Deployment& deployment);

// Returns the names that clients can use: of its models, its cascades and its pipelines.
std::vector<std::string> names_of(const v1::Deployment& deployment);

// True when a model answers for a cascade or a pipeline, and clients do not see it.
bool inner(const v1::Deployment& deployment, std::string_view model);

// The same for a pipeline.
bool of_pipeline(const v1::Deployment& deployment, std::string_view model);

// Returns the name of a runtime's model.
const std::string& model_of(const v1::Deployment& deployment, const v1::Runtime& runtime);

// Returns the text spec of a tokenizer.json; null without one. While it is in use it is made only once, because that is
// slow; models and versions share it. Thread-safe.
std::shared_ptr<const TextSpec> make_text(const std::string& tokenizer_json);

// Makes one of its models; `deployment` must have passed check_deployment.
std::shared_ptr<const ModelSpec> make_model(const v1::Deployment& deployment, const v1::Model& from,
                                            std::uint16_t variant);

// Models whose rows are tensors, not token ids: their checks in a deployment.

inline constexpr std::uint32_t kMostChildren = 1U << 16;  // of a row, that a model may make at a time

// True when all inputs of the model are tensors: its rows have no token ids.
bool all_tensors(const v1::Model& model);

// True when rows carry their length: a tensor's first dim is -1.
bool ragged(const v1::Model& model);

// True when there is a tensor of no fixed size: a ragged one, or BYTES.
bool varies(const v1::Model& model);

// Checks its inputs of ROLE_TENSOR, and their requirements on the others.
MaybeFault check_tensors(const v1::Model& model);

// Checks its tasks, and the input that chooses among them.
MaybeFault check_tasks(const v1::Model& model);

// Checks its outputs of children, and the one that counts them.
MaybeFault check_children(const v1::Model& model);

// Chooses the prompt that goes before a text, by the prompt's name or by the type of the text.

// Names of prompts that a model may have for texts of this type, the best first; none: there is no such type.
std::span<const std::string_view> prompts_for(std::string_view input_type);
// INVALID_ARGUMENT: there is no such type. Empty: not given.
MaybeFault check_input_type(std::string_view input_type);
// Finds the text of the prompt of that name (an empty name: none); without a name, the model's first prompt for the
// type, or else its default. INVALID_ARGUMENT: the model has none by that name.
MaybeFault find_prompt(const ModelSpec& model, std::optional<std::string_view> name, std::string_view input_type,
                       std::string_view* out);

}  // namespace arlo::gateway
