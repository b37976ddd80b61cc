// Reads Kubernetes manifests from stdin as strictly as an API server does: a field that a kind does not have is an error.
package main

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"log"
	"os"

	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/client-go/kubernetes/scheme"
)

func main() {
	decoder := serializer.NewCodecFactory(scheme.Scheme, serializer.EnableStrict).UniversalDeserializer()
	documents := yaml.NewYAMLReader(bufio.NewReader(os.Stdin))
	for {
		document, err := documents.Read()
		if errors.Is(err, io.EOF) {
			return
		}
		if err != nil {
			log.Fatal(err)
		}
		_, kind, err := decoder.Decode(document, nil, nil)
		if err != nil {
			log.Fatalf("%v\n%s", err, document)
		}
		fmt.Println(kind.Kind)
	}
}
