// A Google Cloud Storage server that stores in memory: `fake-gcs-server` as a library.
//
// Its XML interface lacks what obstore writes with: a PUT of an object, with the condition that it does not exist yet.
// Here such a request becomes an upload of its JSON interface, which has both, and checks the condition under a lock.
package main

import (
	"encoding/json"
	"log"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"strings"

	"github.com/fsouza/fake-gcs-server/fakestorage"
)

func main() {
	if len(os.Args) != 4 {
		log.Fatal("usage: gcs HOST:PORT BUCKET conditional|overwrites")
	}
	address, bucket, conditional := os.Args[1], os.Args[2], os.Args[3] == "conditional"
	server, err := fakestorage.NewServerWithOptions(fakestorage.Options{
		NoListener:  true,
		PublicHost:  address,
		ExternalURL: "http://" + address,
	})
	if err != nil {
		log.Fatalf("the server cannot start: %v", err)
	}
	server.CreateBucketWithOpts(fakestorage.CreateBucketOpts{Name: bucket})
	api := server.HTTPHandler()
	log.Fatal(http.ListenAndServe(address, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if name, isObject := strings.CutPrefix(r.URL.Path, "/"+bucket+"/"); isObject && r.Method == http.MethodPut {
			put(api, w, r, bucket, name, conditional)
			return
		}
		api.ServeHTTP(w, r)
	})))
}

// put stores one object; a store that is not conditional overwrites, whatever the request asks for.
func put(api http.Handler, w http.ResponseWriter, r *http.Request, bucket, name string, conditional bool) {
	query := url.Values{"uploadType": {"media"}, "name": {name}}
	if generation := r.Header.Get("x-goog-if-generation-match"); generation != "" && conditional {
		query.Set("ifGenerationMatch", generation)
	}
	r.Method, r.RequestURI = http.MethodPost, ""
	r.URL = &url.URL{Path: "/upload/storage/v1/b/" + bucket + "/o", RawQuery: query.Encode()}
	uploaded := httptest.NewRecorder()
	api.ServeHTTP(uploaded, r)
	var object struct{ Etag, Generation string }
	if uploaded.Code == http.StatusOK && json.Unmarshal(uploaded.Body.Bytes(), &object) == nil {
		w.Header().Set("ETag", `"`+object.Etag+`"`)
		w.Header().Set("x-goog-generation", object.Generation)
	}
	w.WriteHeader(uploaded.Code)
}
