// Models for the tests of the HTTP API's requests: one that takes text and has every kind of output, a reranker, and
// one of ids alone.
#pragma once

#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "gateway_fixture.h"
#include "rewrite/model.h"

namespace arlo::gateway {

inline constexpr const char* kSmallTokenizer =
    R"({"added_tokens":[{"id":1,"content":"[SEP]","special":true,"rstrip":true}],
        "normalizer":{"type":"BertNormalizer"},"pre_tokenizer":{"type":"BertPreTokenizer"},
        "post_processor":{"type":"BertProcessing","sep":["[SEP]",1],"cls":["[CLS]",2]},
        "model":{"type":"WordPiece","vocab":{"[UNK]":0,"[SEP]":1,"[CLS]":2,"un":3,"##aff":4,"##able":5,"a":6,"##a":7}}})";

inline std::vector<std::shared_ptr<const ModelSpec>> http_api_models() {
  const auto made = [](std::int64_t labels) {
    v1::Deployment from = fixture::deployment();
    auto& model = *from.mutable_model();
    model.set_tokenizer(kSmallTokenizer);
    auto* prompt = model.add_prompts();
    prompt->set_name("query");
    prompt->set_text("un a: ");
    model.clear_outputs();
    const auto add = [&model](const char* name, std::int64_t dim, bool of_tokens) {
      auto* output = model.add_outputs();
      output->set_name(name);
      output->set_datatype("FP32");
      output->set_token_level(of_tokens);
      output->add_dims(dim);
    };
    add("sentence_embedding", 3, false);
    add("last_hidden_state", 2, true);
    add("logits", labels, false);
    if (auto fault = check_deployment(from)) throw std::logic_error(fault->message);
    return make_model(from, from.model(), 0);
  };
  return {made(2), made(1), fixture::model(1)};
}

}  // namespace arlo::gateway
