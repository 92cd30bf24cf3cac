// Cost of tokenising a text: text_bench TOKENIZER_JSON. English, and French with an accent in every
// word.
#include <benchmark/benchmark.h>

#include <cstddef>
#include <cstdio>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include "text/tokenizer.h"

namespace arlo::text {
namespace {

Tokenizer* tokenizer = nullptr;

void encode(benchmark::State& state, const std::string& words) {
  const auto tokens = static_cast<std::size_t>(state.range(0));
  // A different text in each turn, so that the branch predictor does not learn it.
  std::vector<std::string> texts(64);
  Encoding encoding;
  for (std::size_t i = 0; i < texts.size(); ++i) {
    std::size_t at = words.find(' ', i * 97 % words.size());
    if (at == std::string::npos) at = 0;
    while (encoding.ids.clear(), tokenizer->encode(texts[i], {}, {}, encoding), encoding.ids.size() < tokens) {
      const auto next = words.find(' ', at + 1);
      texts[i] += words.substr(at, next == std::string::npos ? next : next - at);
      at = next == std::string::npos ? 0 : next;
    }
  }
  std::size_t turn = 0;
  for (auto _ : state) {
    tokenizer->encode(texts[turn++ % texts.size()], {}, {}, encoding);
    benchmark::DoNotOptimize(encoding.ids.data());
  }
}

const std::string kEnglish =
    " When the flood had gone down, the farmers of the valley walked back along the embankment and found that most of "
    "their houses, although damaged, could be repaired before winter; only the old mill, which a previous generation "
    "had built too close to the river, was beyond saving. \"We shall need timber, nails and patience,\" said the "
    "eldest, counting $3,500 in an unremarkable biscuit tin, and nobody contradicted her.";
const std::string kFrench =
    " été déjà forêt naïveté élève à côté où l'évêque préférait célébrer Noël, près des chênes brûlés; ça gênait "
    "Hélène, très fâchée, répétait: « même là-bas, à l'hôtel, personne n'a été payé »";

}  // namespace
}  // namespace arlo::text

int main(int argc, char** argv) {
  using namespace arlo::text;  // NOLINT(google-build-using-namespace): a program of one file
  benchmark::Initialize(&argc, argv);
  std::stringstream json;
  if (argc == 2) json << std::ifstream(argv[1]).rdbuf();
  Tokenizer read;
  if (const auto fault = Tokenizer::read(json.str(), read)) {
    std::fprintf(stderr, "usage: text_bench TOKENIZER_JSON: %s\n", fault->message.c_str());
    return 2;
  }
  tokenizer = &read;
  for (const int tokens : {8, 64, 128, 512}) {
    benchmark::RegisterBenchmark("english", encode, kEnglish)->Arg(tokens);
    benchmark::RegisterBenchmark("french", encode, kFrench)->Arg(tokens);
  }
  benchmark::RunSpecifiedBenchmarks();
  return 0;
}
