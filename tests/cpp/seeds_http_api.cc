// Writes the seeds and the dictionary of fuzz_http_api: seeds_http_api FOLDER DICTIONARY. Always the same ones.

#include <cstdio>
#include <exception>
#include <filesystem>
#include <fstream>
#include <stdexcept>
#include <string>
#include <utility>

namespace {

void write(const std::filesystem::path& path, const std::string& bytes) {
  std::ofstream out(path, std::ios::binary | std::ios::trunc);
  out << bytes;
  if (!out.flush()) throw std::runtime_error("cannot write " + path.string());
}

// What is asked for, by its number in the target, and a body.
const std::pair<char, const char*> kBodies[] = {
    {0, R"({"model":"a","input":["un a","a"],"dimensions":2,"encoding_format":"base64"})"},
    {0, R"({"model":"a","input":[[2,6,1],[2,1]],"priority":1})"},
    {1, R"({"inputs":"un a a a a a","truncate":"CHUNK","prompt_name":"query","normalize":false})"},
    {2, R"({"inputs":["a","un"],"truncate":true,"truncation_direction":"left"})"},
    {3, R"({"inputs":{"source_sentence":"a","sentences":["a","un"]},"parameters":{"truncate":"END"}})"},
    {4, R"({"inputs":[["a","un"],["a","a"]],"raw_scores":true})"},
    {4, R"({"inputs":"a"})"},
    {5, R"({"inputs":["a un [SEP]"],"add_special_tokens":false,"prompt_name":"query"})"},
    {6, R"({"ids":[[2,6,7,1],[0]],"skip_special_tokens":false})"},
    {7, ""},
    {8, R"({"query":"a","texts":["un","a"],"return_text":true})"},
    {9, R"({"query":"a","documents":[{"text":"un"},"a"],"top_n":1,"return_documents":true,"truncation":false})"},
    {10, R"({"model":"a","query":"a","documents":["a"],"use_activation":false})"},
    {11,
     R"({"id":"1","inputs":[{"name":"input_ids","datatype":"INT64","shape":[1,2],"data":[[2,1]]}],)"
     R"("outputs":[{"name":"logits","parameters":{"binary_data":true}}],"parameters":{"binary_data_output":false}})"},
    {11, R"({"inputs":[{"name":"text","datatype":"BYTES","shape":[1],"data":["a"]}]})"},
    {13, R"({"instances":[{"inputs":"a"},{"inputs":["un","a"]}]})"},
    {14, R"({"texts":["a","un"],"input_type":"search_query"})"},
    {15, R"({"texts":["a a a"],"embedding_types":["float","base64","binary","ubinary"],"max_tokens":3})"},
    {16, R"({"queries":"a","documents":["un","a"],"truncate_prompt_tokens":-1,"truncation_side":"left"})"},
    {16, R"({"text_1":["a","un"],"text_2":["un","a"],"use_activation":false})"},
    {17, R"({"input":["a","un"],"raw_scores":true})"},
    {0, R"({"model":"a","input":"a","encoding_format":"bytes","embed_dtype":"float32","endianness":"little"})"},
};

std::string chunked(const std::string& body) {
  char size[32];
  std::snprintf(size, sizeof size, "%zx", body.size() - body.size() / 2);
  const auto half = body.size() / 2;
  std::string out;
  if (half != 0) {
    char first[32];
    std::snprintf(first, sizeof first, "%zx", half);
    out = std::string(first) + ";a=b\r\n" + body.substr(0, half) + "\r\n";
  }
  if (body.size() > half) out += std::string(size) + "\r\n" + body.substr(half) + "\r\n";
  return out + "0\r\nX-Sum: 1\r\n\r\n";
}

}  // namespace

int main(int argc, char** argv) try {
  if (argc != 3) throw std::runtime_error("usage: seeds_http_api FOLDER DICTIONARY");
  const std::filesystem::path folder = argv[1];
  std::filesystem::create_directories(folder);
  int count = 0;
  const auto add = [&](char task, char model, const std::string& rest) {
    write(folder / std::to_string(count++), std::string{task, model} + rest);
  };
  const std::string start = "POST /v2/models/a/infer?model=a HTTP/1.1\r\nHost: a\r\n";
  for (const auto& [task, body] : kBodies) {
    for (char model = 0; model < 12; ++model) {
      add(task, model, start + "Content-Length: " + std::to_string(std::string(body).size()) + "\r\n\r\n" + body);
    }
    add(task, 10, start + "Transfer-Encoding: chunked\r\n\r\n" + chunked(body));
  }
  add(7, 0,
      start + "Accept-Encoding: br, gzip;q=0.5\r\n" +
          "traceparent: 00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01\r\n\r\n");
  const std::string json = R"({"inputs":[{"name":"input_ids","datatype":"INT64","shape":[1,1],)"
                           R"("parameters":{"binary_data_size":8}}]})";
  add(11, 9,
      start + "Inference-Header-Content-Length: " + std::to_string(json.size()) + "\r\n\r\n" + json +
          std::string(8, '\1'));
  std::string words;
  for (const char* word : {"model",
                           "input",
                           "inputs",
                           "dimensions",
                           "encoding_format",
                           "base64",
                           "truncate",
                           "CHUNK",
                           "START",
                           "NONE",
                           "truncation_direction",
                           "prompt_name",
                           "query",
                           "normalize",
                           "priority",
                           "bulk",
                           "source_sentence",
                           "sentences",
                           "parameters",
                           "raw_scores",
                           "ids",
                           "skip_special_tokens",
                           "add_special_tokens",
                           "texts",
                           "documents",
                           "text",
                           "top_n",
                           "return_text",
                           "return_documents",
                           "use_activation",
                           "truncation",
                           "outputs",
                           "instances",
                           "embedding_types",
                           "embedding_type",
                           "ubinary",
                           "bytes",
                           "bytes_only",
                           "input_type",
                           "max_tokens",
                           "output_dimension",
                           "queries",
                           "text_1",
                           "text_2",
                           "truncate_prompt_tokens",
                           "truncation_side",
                           "name",
                           "datatype",
                           "shape",
                           "data",
                           "binary_data",
                           "binary_data_size",
                           "binary_data_output",
                           "BYTES",
                           "INT64",
                           "INT32",
                           "INT16",
                           "INT8",
                           "UINT64",
                           "UINT32",
                           "UINT16",
                           "UINT8",
                           "BOOL",
                           "FP32",
                           "FP64"}) {
    words += R"("\")" + std::string(word) + R"(\"")" + "\n";
  }
  for (const char* word : {"null", "true", "-1", "1e308", "18446744073709551615", "9223372036854775808", R"(\\ud800)",
                           R"(\x0d\x0a)", "0\\x0d\\x0a\\x0d\\x0a", "Transfer-Encoding: chunked",
                           "Content-Length: ", "Inference-Header-Content-Length: ", "[SEP]", "ffffffffffffffff"}) {
    words += '"' + std::string(word) + "\"\n";
  }
  write(argv[2], words);
  return 0;
} catch (const std::exception& error) {
  std::fprintf(stderr, "%s\n", error.what());
  return 1;
}
