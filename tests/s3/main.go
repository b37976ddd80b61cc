// An S3 API server that stores in a folder: `versitygw` as a library, with its posix backend alone.
//
// Its own command also compiles a test suite, an IAM service and three more backends, which no test needs.
package main

import (
	"context"
	"log"
	"os"

	"github.com/versity/versitygw/backend/meta"
	"github.com/versity/versitygw/backend/posix"
	"github.com/versity/versitygw/embedgw"
)

func main() {
	if len(os.Args) != 3 {
		log.Fatal("usage: s3 HOST:PORT FOLDER, with ROOT_ACCESS_KEY_ID and ROOT_SECRET_ACCESS_KEY in the environment")
	}
	store, err := posix.New(os.Args[2], meta.XattrMeta{}, posix.PosixOpts{
		ValidateBucketNames: true,
		Concurrency:         5000,
		IOBufferSize:        1 << 20,
		CopyObjectThreshold: 5 << 30,
	})
	if err != nil {
		log.Fatalf("the folder cannot be served: %v", err)
	}
	// the limits are those of the command
	err = embedgw.RunVersityGW(context.Background(), store, &embedgw.Config{
		RootUserAccess:    os.Getenv("ROOT_ACCESS_KEY_ID"),
		RootUserSecret:    os.Getenv("ROOT_SECRET_ACCESS_KEY"),
		Ports:             []string{os.Args[1]},
		MaxConnections:    250000,
		MaxRequests:       100000,
		MultipartMaxParts: 10000,
		KeepAlive:         true,
		Quiet:             true,
	})
	if err != nil {
		log.Fatalf("the server ended: %v", err)
	}
}
